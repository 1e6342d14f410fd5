"""Processes that have become another user's, as with sudo: the supervisor cannot signal them, and lives on."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from typing import Any

import psutil
import pytest

from supervisor import Status
from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.stopwatch import Stopwatch

NOBODY = 65534
_PR_CAPBSET_DROP, _CAP_KILL = 24, 5
HANDLERS = """
import os, subprocess, sys, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    if payload.get("leaves"):
        subprocess.Popen(["sleep", "600"], user=65534, group=65534, extra_groups=[], start_new_session=True)
        print("left", file=sys.stderr, flush=True)
    if payload.get("turns"):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.setresuid(65534, 65534, 65534)
    if payload.get("ends"):
        os._exit(7)
    while payload.get("hangs"):
        try:
            time.sleep(600)
        except BaseException:
            pass
    record("end", ctx)
    return os.getpid()
"""
PROGRAM = """
import json, os, sys
sys.stdin.readline()
os.write(3, json.dumps({"type": "hello", "protocol": 1}).encode() + b"\\n")
sys.stdin.readline()
"""
POOL = """
[defaults]
workers = 1
shutdown_grace = "1s"
[pools.work]
handler = "jobs:work"
retry = { max_attempts = 1 }
max_crashes = 1
timeout = "300ms"
[pools.other]
handler = "jobs:work"
"""


def without_signals() -> None:
    """Root that may signal its own processes only, as any other user may."""
    if ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_KILL, 0, 0, 0) != 0:
        raise OSError("CAP_KILL stays")


pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root is needed, to make processes of another user")


def foreign(site: Site, supervisor: subprocess.Popen[bytes]) -> list[int]:
    """What descends from a supervisor and belongs to somebody else now."""
    return [pid for pid in site.survivors(supervisor) if _is_foreign(pid)]


def _is_foreign(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(pid)
        return process.uids().real == NOBODY and process.status() != psutil.STATUS_ZOMBIE
    return False


def end_foreign(site: Site, supervisor: subprocess.Popen[bytes]) -> None:
    for pid in foreign(site, supervisor):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.fault(15)
def test_a_process_of_another_user_that_a_handler_leaves_behind_holds_up_nobody(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    supervisor = site.start(preexec_fn=without_signals)
    for _ in range(3):
        job = site.queue.enqueue("work", {"leaves": True, "ends": True})
        assert site.queue.wait(job, timeout=20).status is Status.QUARANTINED
    watch = Stopwatch()
    site.done(site.queue.enqueue("work"))
    site.done(site.queue.enqueue("other"))
    assert watch.seconds() < 2
    assert {event["reason"] for event in site.events() if event.get("event") == "worker_died"} == {"exit"}

    def refusals() -> list[dict[str, Any]]:
        return [event for event in site.events() if event.get("event") == "signal_refused"]

    wait_for(lambda: len(refusals()) >= 3, "a refusal for each of the processes")
    refused = refusals()
    assert len(refused) == len({event["process"] for event in refused}) == 3
    assert "sleep 600" in refused[0]["command"]
    site.stop(supervisor)
    assert supervisor.returncode == 0
    end_foreign(site, supervisor)


@pytest.mark.fault(39)
def test_a_template_that_dies_beside_processes_of_another_user_ends_no_supervisor(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    supervisor = site.start(preexec_fn=without_signals)
    site.done(site.queue.enqueue("work", {"leaves": True}))
    kill(psutil.Process(site.workers("work")[0].pid).ppid())
    wait_for(lambda: site.event("template_died"), "the template's death")
    site.done(site.queue.enqueue("work"))
    wait_for(lambda: site.event("signal_refused"), "the refusal")
    assert site.stop(supervisor) == 0
    end_foreign(site, supervisor)


@pytest.mark.fault(14)
def test_a_worker_that_has_become_another_users_is_left_behind_at_the_end(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    supervisor = site.start(preexec_fn=without_signals)
    job = site.queue.enqueue("work", {"turns": True, "hangs": True})
    pid = site.running_pid(job)
    wait_for(lambda: _is_foreign(pid), "it to be another user's")
    wait_for(lambda: site.event("signal_refused", process=pid) or supervisor.poll() is not None, "the refusal")
    site.done(site.queue.enqueue("other"))
    supervisor.send_signal(signal.SIGTERM)
    assert supervisor.wait(40) == 0
    left = site.event("worker_left_behind")
    assert left is not None
    assert (left["pool"], left["pid"], left["job"]) == ("work", pid, job)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.fault(14)
def test_a_program_of_another_user_at_its_limit_fails_as_a_timeout(make_site: MakeSite) -> None:
    turned = "import os; os.setresuid(65534, 65534, 65534); os.execv('/bin/sleep', ['sleep', '600'])"
    site = make_site(
        f"[pools.work]\ncommand = [{sys.executable!r}, 'program.py']\nworkers = 1\n"
        'timeout = "300ms"\nretry = { max_attempts = 1 }\nshutdown_grace = "1s"\n',
        HANDLERS,
    )
    (site.folder / "program.py").write_text(f"{PROGRAM}\n{turned}\n")
    supervisor = site.start(preexec_fn=without_signals)
    job = site.queue.wait(site.queue.enqueue("work"), timeout=30)
    assert job.status is Status.FAILED
    [(kind, told)] = site.rows("SELECT kind, traceback FROM job_errors WHERE job_id = ?", job.id)
    assert (kind, "could not be killed" in told) == ("timeout", True)
    assert site.stop(supervisor) == 0
    end_foreign(site, supervisor)
