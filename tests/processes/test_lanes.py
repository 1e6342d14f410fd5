"""A second pool with `min_priority`: a worker that is free for urgent jobs whatever the others do."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from supervisor import Status
from tests.site_under_test import Site, kill, wait_for
from tests.stopwatch import Stopwatch
from tests.web.client import ADMIN, admin_of

MakeSite = Callable[..., Site]

LANES = """
[pools.work]
handler = "jobs:work"
workers = 2

[pools.urgent]
types = ["work"]
handler = "jobs:work"
workers = 1
min_priority = 10
"""


def idle(site: Site, pool: str) -> bool:
    return [worker.state.name for worker in site.workers(pool)] == ["IDLE"]


def occupied(site: Site, jobs: int = 6) -> tuple[list[int], Path]:
    """Long jobs: two run, the others wait; all end when the file is there."""
    long, go = site.held("work", jobs)
    wait_for(lambda: site.count("running") == 2, "both workers to be busy")
    wait_for(lambda: idle(site, "urgent"), "the worker for urgent jobs")
    return long, go


def pools_of(site: Site, jobs: list[int]) -> set[str]:
    """Where these run."""
    return {worker.name.rpartition("-")[0] for worker in site.workers() if worker.job in jobs}


@pytest.mark.each_engine
def test_an_urgent_job_starts_at_once_while_every_other_worker_is_busy(make_site: MakeSite) -> None:
    site = make_site(LANES)
    site.start()
    _, go = occupied(site)
    for priority in (10, 100, 10):
        watch = Stopwatch()
        site.done(site.queue.enqueue("work", {}, priority=priority))
        assert watch.seconds() < 5  # the long jobs last until we say so
    below = site.queue.enqueue("work", {}, priority=9)
    delayed = site.queue.enqueue("work", {}, priority=50, delay=0.3)
    site.done(delayed)
    assert (site.job(below).status, site.count("running")) == (Status.PENDING, 2)
    go.touch()
    site.verdict()


@pytest.mark.each_engine
def test_urgent_jobs_use_both_lanes_which_share_a_template_and_are_shown(make_site: MakeSite) -> None:
    site = make_site(LANES)
    site.start()
    wait_for(lambda: len(site.workers("work")) == 2 and idle(site, "urgent"), "the workers")
    assert len({psutil.Process(worker.pid).ppid() for worker in site.workers()}) == 1  # both share a template
    shown = json.loads(site.command("status", "--json").stdout)
    assert {pool["name"]: pool["min_priority"] for pool in shown["pools"]} == {"work": None, "urgent": 10}
    assert "from priority 10" in site.command("status").stdout
    go = site.folder / "go"
    urgent = site.queue.enqueue_many("work", [{"until": str(go)}] * 3, priority=10)
    wait_for(lambda: pools_of(site, urgent) == {"work", "urgent"}, "both pools to run them")
    wait_for(lambda: {worker.job for worker in site.workers()} == {*urgent}, "all of them to run")
    go.touch()
    site.verdict()


@pytest.mark.each_engine
def test_the_free_worker_sleeps_while_jobs_of_others_come_and_go(make_site: MakeSite) -> None:
    site = make_site(LANES)
    supervisor = site.start()
    wait_for(lambda: idle(site, "urgent"), "the worker for urgent jobs")
    [worker] = site.workers("urgent")
    _, go = occupied(site)
    processes = [psutil.Process(pid) for pid in (worker.pid, site.maintainer(supervisor))]
    before = [process.cpu_times().user + process.cpu_times().system for process in processes]
    switches, begun = processes[0].num_ctx_switches().voluntary, time.monotonic()
    for n in range(40):
        site.queue.enqueue("work", {"n": n, "until": str(go)})
        time.sleep(0.05)
    lasted = time.monotonic() - begun
    used = [process.cpu_times().user + process.cpu_times().system for process in processes]
    # Its main thread: nobody wakes it for what it does not take. Some switches are the heartbeat's and its meters'.
    assert processes[0].num_ctx_switches().voluntary - switches < 20
    assert used[0] - before[0] < 0.1
    assert used[1] - before[1] < lasted / 2
    assert idle(site, "urgent")
    go.touch()
    site.verdict()


@pytest.mark.each_engine
@pytest.mark.fault(1)
def test_an_urgent_job_whose_worker_is_killed_runs_again_in_its_lane(make_site: MakeSite) -> None:
    site = make_site(LANES)
    site.start()
    long, go = occupied(site)
    end = site.folder / "end"
    urgent = site.queue.enqueue("work", {"until": str(end)}, priority=10)
    kill(site.running_pid(urgent))
    wait_for(lambda: len(site.runs("start", urgent)) == 2, "the job to run again")
    assert pools_of(site, [urgent]) == {"urgent"}
    end.touch()
    assert site.done(urgent).crashes == 1
    assert {site.job(job).status for job in long} == {Status.RUNNING, Status.PENDING}
    go.touch()
    site.verdict(hit=[urgent])


@pytest.mark.each_engine
def test_a_request_with_a_priority_is_answered_by_the_free_worker(make_site: MakeSite) -> None:
    site = make_site(LANES + ADMIN)
    admin = admin_of(site, site.start())
    _, go = occupied(site)
    connection = http.client.HTTPConnection(*admin.address, timeout=30)

    def run(priority: int) -> int:
        wait = 20 if priority >= 10 else 0.2
        headers = admin.bearer | {"Content-Type": "application/json"}
        connection.request("POST", f"/run/work?wait={wait}&priority={priority}", "{}", headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status

    assert (run(10), run(9)) == (200, 202)
    connection.close()
    go.touch()


@pytest.mark.each_engine
def test_jobs_below_the_only_pool_of_their_type_are_named(make_site: MakeSite) -> None:
    alone = LANES.partition("[pools.urgent]")
    site = make_site(alone[1] + alone[2])
    lacking = "no pool takes jobs of the type work below priority 10: add a pool for them without min_priority"
    assert json.loads(site.command("check", "--json").stdout)["warnings"] == [lacking]
    assert lacking in " ".join(site.command("doctor", code=None).stdout.split())
    site.start()
    assert site.told("priority_unhandled")
    below = site.queue.enqueue("work", {}, priority=9)
    site.done(site.queue.enqueue("work", {}, priority=10))
    sentence = "no pool that takes work takes jobs below priority 10, and some wait"
    assert sentence in site.command("status").stdout
    assert sentence in " ".join(site.command("jobs", "show", str(below)).stdout.split())
    assert site.job(below).status is Status.PENDING
    site.verdict(pending=[below])
