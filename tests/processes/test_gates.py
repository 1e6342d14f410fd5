"""Limits and rates, kept by running supervisors while processes are killed."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.ledger import Ledger
from tests.site_under_test import Site, kill, wait_for
from tests.stopwatch import Stopwatch

MakeSite = Callable[..., Site]
HANDLERS = """
import time
from ledger import record

def handle(payload, ctx):
    record("start", ctx)
    time.sleep(payload.get("seconds", 0.0))
    record("end", ctx)
    if payload.get("fails", 0) >= ctx.attempt:
        raise RuntimeError("as asked")
"""


def pool(workers: int, limits: str, **more: str) -> str:
    keys = "".join(f"{key} = {value}\n" for key, value in more.items())
    return (
        f'[pools.p]\nhandler = "jobs:handle"\ntypes = ["t", "plain"]\nworkers = {workers}\nmax_crashes = 100\n{keys}'
        f'[pools.p.retry]\nbase = "50ms"\n[types.t]\n{limits}'
    )


def most_at_once(site: Site, keys: dict[int, str], killed: dict[int, float]) -> int:
    """The most runs of a key at the same time. One of a killed process ends when that was killed."""
    lines = sorted(Ledger(site.ledger, site.where).lines(), key=lambda line: line.at)
    running: dict[str, dict[int, int]] = defaultdict(dict)
    most = 0
    for line in lines:
        there = running[keys[line.job]]
        for job, pid in list(there.items()):
            if killed.get(pid, line.at) < line.at:
                del there[job]
        if line.what == "start":
            there[line.job] = line.pid
            most = max(most, len(there))
        else:
            there.pop(line.job, None)
    return most


@pytest.mark.fault(2)
@pytest.mark.parametrize("limit", [1, 3])
def test_no_key_ever_runs_more_jobs_than_its_limit(make_site: MakeSite, limit: int) -> None:
    site = make_site(pool(6, f"concurrency_per_key = {limit}\n"), HANDLERS)
    supervisor = site.start()
    for number in range(600):
        payload = {"seconds": 0.002, "fails": int(number % 50 == 0)}
        key = f"k{random.randrange(20)}"
        site.rows("INSERT INTO jobs (type, payload, concurrency_key) VALUES ('t', ?, ?)", json.dumps(payload), key)
    keys = dict(site.rows("SELECT id, concurrency_key FROM jobs WHERE type = 't'"))

    killed: dict[int, float] = {}
    for victim in ("worker", "supervisor", "worker"):
        time.sleep(0.4)
        pids = [slot.pid for slot in site.workers()]
        if victim == "supervisor":
            supervisor.kill()
            supervisor.wait()
            killed |= dict.fromkeys(pids, time.time())  # its workers end with it
            supervisor = site.start()
        elif pids:
            killed[pids[0]] = time.time()
            kill(pids[0])
    wait_for(lambda: site.count("done") == 600, "all to be done", 90)

    assert most_at_once(site, keys, killed) <= limit
    site.verdict(others=keys, hit=keys)
    assert site.stop(supervisor) == 0


@pytest.mark.each_engine
def test_a_rate_counts_starts_and_is_kept_after_a_time_without_any(make_site: MakeSite) -> None:
    site = make_site(pool(4, 'rate = "50/s"\n'), HANDLERS)
    supervisor = site.start()
    wait_for(lambda: site.workers(), "workers")
    watch = Stopwatch()
    ids = site.queue.enqueue_many("t", [{}] * 100)
    assert site.command("pause", "t").returncode == 0
    time.sleep(1.0)
    assert site.command("resume", "t").returncode == 0
    wait_for(lambda: site.count("done") == 100, "all to be done", 60)
    took = watch.seconds()

    starts = sorted(started for (started,) in site.rows("SELECT started_at FROM jobs WHERE type = 't'"))
    # A run begins some milliseconds after its claim, which is what counts.
    assert max(sum(at <= other < at + 0.97 for other in starts) for at in starts) <= 50
    assert took < 1.0 + 100 / 50 + 2.0
    assert len(ids) == 100
    assert site.stop(supervisor) == 0


@pytest.mark.each_engine
def test_held_jobs_do_not_make_a_pool_grow(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.p]\nhandler = "jobs:handle"\ntypes = ["t"]\nmin_workers = 1\nmax_workers = 4\n'
        "[types.t]\nmax_running = 1\n",
        HANDLERS,
    )
    supervisor = site.start()
    site.queue.enqueue_many("t", [{"seconds": 0.05}] * 60)
    wait_for(lambda: site.count("done") >= 20, "some to be done", 60)
    assert site.count("held") > 0
    assert len(site.workers()) == 1
    wait_for(lambda: site.count("done") == 60, "all to be done", 60)
    assert site.stop(supervisor) == 0


def test_what_was_there_before_the_start_passes_the_gates_before_any_worker_claims(make_site: MakeSite) -> None:
    site = make_site(pool(4, "max_running = 1\n"), HANDLERS)
    expired = [site.queue.enqueue("t", {}, expires_in=0.05) for _ in range(3)]
    site.queue.enqueue_many("t", [{}] * 10_000, delay=3600, priority=5)  # so that passing takes a while
    jobs = [site.queue.enqueue("t", {"seconds": 0.1}) for _ in range(6)]
    site.start()
    wait_for(lambda: all(site.job(job).status.finished for job in jobs), "all to end")
    assert {site.job(job).last_error for job in expired} == {"expired"}
    assert not {line.job for line in Ledger(site.ledger, site.where).lines()} & {*expired}
    assert most_at_once(site, dict.fromkeys(jobs, "t"), {}) == 1


@pytest.mark.each_engine
def test_a_burst_ends_when_nothing_lets_the_others_through_and_names_them(make_site: MakeSite) -> None:
    site = make_site(pool(2, 'rate = "1/h"\n'), HANDLERS)
    tomorrow = site.queue.enqueue("plain", delay="1d")
    behind = site.queue.enqueue("plain", after=[tomorrow])
    keyed = [site.queue.enqueue("plain", {"seconds": 0.05}, concurrency_key="a") for _ in range(3)]
    last = site.queue.enqueue("plain", after=keyed)
    assert site.start("--burst", wait=False).wait(60) == 0
    assert [site.job(job).status for job in (tomorrow, behind, *keyed, last)] == ["pending", "held", *["done"] * 4]
    left = site.event("burst_left")
    assert left is not None
    assert (left["jobs"], left["count"]) == ([behind], 1)

    rated = [site.queue.enqueue("t") for _ in range(3)]
    ended = site.start("--burst", wait=False)
    assert ended.wait(60) == 0
    assert [site.job(job).status for job in rated] == ["done", "pending", "held"]
    left = site.event("burst_left", count=3)
    assert left is not None
    assert left["jobs"] == [behind, *rated[1:]]


@pytest.mark.fault(2)
@pytest.mark.parametrize("victim", ["worker", "supervisor"])
def test_a_killed_run_is_superseded_by_the_job_that_waits_with_its_key(make_site: MakeSite, victim: str) -> None:
    site = make_site(pool(1, ""), HANDLERS)
    supervisor = site.start()
    one = site.queue.enqueue("plain", {"seconds": 60}, unique_key="k", unique="pending")
    pid = site.running_pid(one)
    two, new = site.queue.put("plain", {"n": 2}, unique_key="k", unique="pending")
    assert new
    if victim == "worker":
        kill(pid)
    else:
        supervisor.kill()
        supervisor.wait()
        site.start()
    site.done(two)
    assert (site.job(one).status, site.job(one).last_error) == ("cancelled", f"superseded by job {two}")
    assert len(site.runs("start", one)) == len(site.runs("start", two)) == 1
