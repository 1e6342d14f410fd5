"""Pools without workers: they wake for what is due and no more, and a reload reaches them, too."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.samples import sampled
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
POOL = """
[pools.work]
handler = "jobs:work"
min_workers = 0
max_workers = 4
scale_down_delay = "50ms"
"""
JOBS = """
from ledger import record

def work(payload, ctx):
    record("start", ctx); record("end", ctx)
    return VERSION

VERSION = 1
"""


def asleep(site: Site) -> bool:
    return not site.workers("work")


def test_one_job_wakes_one_worker(make_site: MakeSite) -> None:
    site = make_site(POOL)
    site.start()
    for seconds in (0, 0, 0, 0.3, 0.3):
        site.done(site.queue.enqueue("work", {"seconds": seconds}))
        wait_for(lambda: asleep(site), "the pool to be asleep")
    scaled = [(e["before"], e["target"], e["why"]) for e in site.events() if e.get("event") == "pool_scaled"]
    assert [one for one in scaled if one[1] > 1] == []


def version(site: Site, number: int, more: str = "") -> None:
    (site.folder / "jobs.py").write_text(JOBS.replace("VERSION = 1", f"VERSION = {number}") + more + "#" * number)


@pytest.mark.fault(54)
@pytest.mark.parametrize("start", sampled(["fork", "spawn"], quick=1))
def test_after_a_reload_a_pool_that_slept_runs_the_new_code_only(make_site: MakeSite, start: str) -> None:
    site = make_site(f'{POOL}start = "{start}"\n', JOBS)
    supervisor = site.start()
    assert site.done(site.queue.enqueue("work")).result == 1
    for number in (2, 3):  # told by a signal, and by the command
        wait_for(lambda: asleep(site), "the pool to be asleep")
        version(site, number)
        if number % 2:
            assert "reloaded" in site.command("reload", "--wait").stdout
        else:
            supervisor.send_signal(signal.SIGHUP)
            wait_for(lambda n=number: _reloads(site) == n - 1, "the reload")
        jobs = site.queue.enqueue_many("work", [{}] * 3)
        assert [site.done(job).result for job in jobs] == [number] * 3
    site.verdict()


def _reloads(site: Site) -> int:
    return len([event for event in site.events() if event.get("event") == "reloaded"])


@pytest.mark.fault(54)
def test_a_pool_that_falls_asleep_after_a_reload_wakes_with_the_new_code_only(make_site: MakeSite) -> None:
    site = make_site(POOL, JOBS)
    site.start()
    gate = site.folder / "gate"
    slow = JOBS.replace("return", f"\n    while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n    return")
    (site.folder / "jobs.py").write_text("import os, time\n" + slow)
    job = site.queue.enqueue("work")
    site.running_pid(job)
    version(site, 2, "import time; time.sleep(1)\n")  # not ready before the pool sleeps
    command = [sys.executable, "-m", "supervisor", "reload", "--wait", "-c", str(site.config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=site.folder) as waiting:
        wait_for(lambda: _reloads(site) == 1, "the reload")
        gate.touch()
        assert site.done(job).result == 1
        assert waiting.wait(30) == 0
    assert [site.done(job).result for job in site.queue.enqueue_many("work", [{}] * 4)] == [2] * 4
