"""The supervisor is killed while its processes cannot see that for themselves: stopped, or deaf in native code."""

from __future__ import annotations

import os
import signal
import subprocess

import psutil
import pytest

from tests.faults.programs import HELPED, POOL, program_site
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, kill, wait_for

HANDLERS = """
import ctypes, os, signal, subprocess, time
from ledger import record

def family(payload, ctx):
    '''Starts a program in a session of its own, and then hangs, in native code with the interpreter's lock or not.'''
    subprocess.Popen(["sleep", "300"], start_new_session=True)
    record("start", ctx)
    if payload == "native":
        ctypes.PyDLL(None).sleep(300)
    time.sleep(300)

def forks(payload, ctx):
    '''The same with a child that executes no program.'''
    if not os.fork():
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        signal.sigwait([signal.SIGUSR2])
    family(payload, ctx)
"""
FAMILY = '[pools.family]\nhandler = "jobs:family"\nworkers = 1\ntimeout = "10m"\nheartbeat_timeout = "5m"\n'


def stop(*pids: int) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        wait_for(lambda pid=pid: psutil.Process(pid).status() == psutil.STATUS_STOPPED, f"{pid} to stop")


def all_end_with(site: Site, supervisor: subprocess.Popen[bytes]) -> None:
    """Kill it: within a second nothing is left of it, nor of what handlers have started."""
    kill(supervisor.pid)
    supervisor.wait()
    wait_for(lambda: not site.survivors(supervisor), "everything, the sleeps too, to be gone", patience=1.0)


STOPPED = ("template", "worker", "template and worker", "supervisor", "all")


@pytest.mark.fault(49)
@pytest.mark.parametrize(
    ("stopped", "start", "handler"),
    [
        *sampled([(who, start, "") for who in STOPPED for start in ("fork", "spawn")], quick=6),
        *(("template", start, "native") for start in ("fork", "spawn")),
    ],
)
def test_nothing_outlives_a_killed_supervisor_although_its_processes_are_stopped_or_in_native_code(
    make_site: MakeSite, stopped: str, start: str, handler: str
) -> None:
    site = make_site(f'{FAMILY}start = "{start}"\n', HANDLERS)
    supervisor = site.start()
    worker = site.running_pid(site.queue.enqueue("family", handler))
    pids = {"template": psutil.Process(worker).ppid(), "worker": worker, "supervisor": supervisor.pid}
    stop(*(pid for name, pid in pids.items() if stopped == "all" or name in stopped))
    all_end_with(site, supervisor)


@pytest.mark.fault(7, 49)
def test_no_program_outlives_a_killed_supervisor_although_template_and_worker_are_stopped(make_site: MakeSite) -> None:
    site = program_site(make_site, POOL, helped=HELPED)
    supervisor = site.start()
    job = site.queue.enqueue("helped", {"do": "starts others"})
    program = psutil.Process(site.running_pid(job))
    wait_for(lambda: len(program.children(recursive=True)) == 3, "the shell and two sleeps")
    worker = program.ppid()
    stop(worker, psutil.Process(worker).ppid(), program.pid)
    all_end_with(site, supervisor)
    site.start()
    assert site.done(job).crashes == 1


@pytest.mark.fault(49)
@pytest.mark.parametrize("point", ["fork_worker.child", "fork_worker", "fork_worker.before"])
def test_nothing_outlives_a_supervisor_that_is_killed_while_a_worker_is_being_made(
    make_site: MakeSite, point: str
) -> None:
    site = make_site(FAMILY, HANDLERS)
    supervisor = site.start(wait=False, env=site.failpoints(f"template:{point}=stop"))
    site.hit(f"template:{point}=stop")
    all_end_with(site, supervisor)


@pytest.mark.fault(49)
def test_a_child_stopped_at_its_birth_keeps_nobody_alive_and_leaves_when_it_goes_on(make_site: MakeSite) -> None:
    """It still holds all that its supervisor held: every channel, and the line by which workers are told."""
    site = make_site(FAMILY, HANDLERS)
    point = "supervisor:fork_admin.child=stop"
    supervisor = site.start(env=site.failpoints(point))
    site.running_pid(site.queue.enqueue("family"))
    site.configure(FAMILY + '[admin]\nlisten = "unix:admin.sock"\n')
    supervisor.send_signal(signal.SIGHUP)
    newborn = site.hit(point)
    kill(supervisor.pid)
    supervisor.wait()
    wait_for(lambda: site.survivors(supervisor) == [newborn], "all others to be gone", patience=1.0)
    os.kill(newborn, signal.SIGCONT)
    wait_for(lambda: not site.survivors(supervisor), "it to be gone", patience=1.0)


@pytest.mark.fault(49)
def test_a_supervisor_killed_with_its_template_stopped_leaves_its_job_to_the_next_start(make_site: MakeSite) -> None:
    handlers = HANDLERS + "\ndef once(payload, ctx):\n    if ctx.token == 1:\n        family(payload, ctx)\n"
    site = make_site(FAMILY.replace("jobs:family", "jobs:once").replace("pools.family", "pools.once"), handlers)
    first = site.start()
    job = site.queue.enqueue("once")
    worker = site.running_pid(job)
    stop(psutil.Process(worker).ppid())
    kill(first.pid)
    first.wait()
    site.start()
    assert site.done(job).crashes == 1
    assert site.survivors(first) == []


@pytest.mark.fault(49)
@pytest.mark.parametrize("handler", ["family", "forks"])
def test_what_outlives_a_supervisor_killed_together_with_its_template_ends_at_the_next_start(
    make_site: MakeSite, handler: str
) -> None:
    """No process is left that knows of the handler's children: they have only their mark."""
    site = make_site(FAMILY.replace("jobs:family", f"jobs:{handler}"), HANDLERS)
    supervisor = site.start()
    worker = site.running_pid(site.queue.enqueue("family"))
    template = psutil.Process(worker).ppid()
    stop(template, supervisor.pid)
    kill(template)
    kill(supervisor.pid)
    supervisor.wait()
    wait_for(lambda: worker not in psutil.pids(), "the worker to be gone")
    assert site.survivors(supervisor)

    successor = site.start()
    wait_for(lambda: not site.survivors(supervisor), "what the handler has started to be gone")
    ended = site.event("survivors_ended", pid_of=successor)
    assert ended is not None
    assert site.queue.job(1).status is not None
