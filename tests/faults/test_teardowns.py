"""A worker that does not end when it leaves is ended, and keeps no place of one that could serve."""

from __future__ import annotations

import psutil
import pytest

from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, alive, wait_for
from tests.stopwatch import Stopwatch

JOBS = """
import asyncio, os, pathlib, subprocess, threading, time
from ledger import record

def hang():
    pathlib.Path("hangs").write_text(str(os.getpid()))
    threading.Event().wait()

class Plain:
    def handle(self, payload, ctx):
        record("start", ctx)
        if payload.get("child"):
            subprocess.Popen(["sleep", "60"], start_new_session=True)
        time.sleep(payload.get("seconds", 0))
        record("end", ctx)
        return {"pid": os.getpid()}

class Hangs(Plain):
    def teardown(self, ctx):
        hang()

class Native(Plain):
    def teardown(self, ctx):
        pathlib.Path("hangs").write_text(str(os.getpid()))
        sum(range(10**12))  # keeps the interpreter's lock: there is no heartbeat, and no signal is seen

class Async:
    async def handle(self, payload, ctx):
        record("start", ctx); record("end", ctx)
        return {"pid": os.getpid()}

    async def teardown(self, ctx):
        pathlib.Path("hangs").write_text(str(os.getpid()))
        await asyncio.Event().wait()

class Blocks(Async):
    async def setup(self, ctx):
        self.task = asyncio.create_task(self.block())

    async def block(self):  # in one worker
        while not os.path.exists(f"block {os.getpid()}"):
            await asyncio.sleep(0.01)
        hang()

    teardown = None

class Around:
    def teardown(self, worker):
        hang()
"""
POOL = '[pools.model]\nhandler = "jobs:{handler}"\nworkers = 1\n'


def served_by(site: Site) -> int:
    return int(site.done(site.queue.enqueue("model", {})).result["pid"])


WAYS = (
    ("Hangs", ""),
    ("Native", ""),
    ("Plain", 'middleware = ["jobs:Around"]'),
    ("Async", ""),
    ("Hangs", "concurrency = 4"),
    ("Blocks", "concurrency = 4"),
    ("Hangs", 'start = "spawn"'),
    ("Hangs", "spares = 1"),
)


@pytest.mark.fault(113)
@pytest.mark.parametrize(("handler", "more"), sampled(WAYS, quick=6))
def test_a_worker_whose_teardown_does_not_end_is_ended(make_site: MakeSite, handler: str, more: str) -> None:
    config = POOL.format(handler=handler) + f'shutdown_grace = "500ms"\n{more}\n'
    site = make_site(config, JOBS)
    site.start()
    old = psutil.Process(served_by(site))
    if handler == "Blocks":
        (site.folder / f"block {old.pid}").touch()
        wait_for((site.folder / "hangs").exists, "the event loop to be blocked")
    assert site.command("reload", "--wait").returncode == 0
    wait_for(lambda: (site.folder / "hangs").exists() and not alive(old), "the old worker to be ended")
    assert site.told("teardown_timed_out", limit_seconds=0.5)
    died = site.told("worker_died", pid=old.pid)
    assert died is not None
    assert (died["reason"], died["job"]) == ("teardown", None)
    if handler == "Hangs":
        assert "in hang" in site.log.read_text(), "the log does not say where it hangs"
    assert served_by(site) != old.pid
    site.verdict()


@pytest.mark.fault(113)
def test_a_job_that_outlasts_the_grace_while_its_worker_leaves_is_no_teardown(make_site: MakeSite) -> None:
    site = make_site(POOL.format(handler="Plain") + 'shutdown_grace = "100ms"\n', JOBS)
    site.start()
    job = site.queue.enqueue("model", {"seconds": 3})
    site.running_pid(job)
    assert site.command("reload", "--wait").returncode == 0
    site.done(job)
    assert len(site.runs("start", job)) == 1
    assert not site.event("teardown_timed_out")
    site.verdict()


@pytest.mark.fault(113)
def test_a_spare_serves_while_its_predecessor_hangs_in_its_teardown(make_site: MakeSite) -> None:
    config = POOL.format(handler="Hangs") + 'spares = 1\nmax_jobs_per_worker = 3\nshutdown_grace = "5m"\n'
    site = make_site(config, JOBS)
    supervisor = site.start()
    watch = Stopwatch()
    assert len({served_by(site) for _ in range(9)}) == 3
    assert watch.seconds() < 60
    wait_for(lambda: site.supervisor_status(supervisor)["pools"]["model"]["spares"] == 1, "another spare")
    assert not site.event("worker_died")
    site.verdict()


@pytest.mark.fault(113)
def test_a_teardown_beside_which_a_process_of_a_job_lives_keeps_its_place(make_site: MakeSite) -> None:
    config = POOL.format(handler="Hangs") + 'spares = 1\nmax_jobs_per_worker = 1\nshutdown_grace = "2s"\n'
    site = make_site(config, JOBS)
    site.start()
    first = site.queue.enqueue("model", {"child": True})
    second = site.queue.enqueue("model", {})
    old = psutil.Process(site.done(first).result["pid"])
    site.done(second)
    assert not alive(old), "the second job began before its predecessor and what that had started had ended"
    site.verdict()
