"""When a job may run: the promises, with thousands of jobs, other programs, and a worker killed every second."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.ledger import Ledger, repeated
from tests.processes.test_gates import most_at_once, pool
from tests.processes.test_hosts import Hosts
from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.watch import family

Deeds = Sequence[Callable[[], object]]
pytestmark = [pytest.mark.long, pytest.mark.each_engine, pytest.mark.long_on_postgres]

HANDLERS = """
import os, random, time
from ledger import record

def handle(payload, ctx):
    record("start", ctx)
    time.sleep(payload.get("seconds", 0.0))
    while "until" in payload and not os.path.exists(payload["until"]):
        time.sleep(0.1)
    record("end", ctx)
    if random.random() < payload.get("fails", 0) and not os.path.exists("mended"):
        raise RuntimeError("as asked")
"""
NUMBERS = "WITH RECURSIVE n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < ?) "
MANY = 10_000
PATIENCE = 300.0  # seconds for thousands of jobs on a busy machine


def kill_workers(site: Site, over: Callable[[], bool], deeds: Deeds = (), rest: float = 1.0) -> dict[int, float]:
    """Kill a worker again and again until it is over, and do one of these deeds beside it; who died, and when."""
    killed: dict[int, float] = {}
    until = time.monotonic() + PATIENCE
    for deed in itertools.cycle([*deeds, lambda: None]):
        if over():
            break
        assert time.monotonic() < until, statuses(site)
        if pids := [slot.pid for slot in site.workers()]:
            with contextlib.suppress(ProcessLookupError):
                pid = random.choice(pids)
                killed[pid] = kill(pid)
        deed()
        time.sleep(rest)
    return killed


def statuses(site: Site) -> dict[str, int]:
    return dict(site.rows("SELECT status, count(*) FROM jobs WHERE type = 't' GROUP BY status"))


def ended(site: Site) -> bool:
    return not statuses(site).keys() & {"held", "pending", "running"}


def produce(site: Site) -> None:
    """10,000 jobs with 100 keys, half of which run again by themselves if they fail."""
    for _ in range(100):
        site.rows(
            NUMBERS + "INSERT INTO jobs (type, payload, concurrency_key, max_attempts) SELECT 't',"
            """ '{"seconds": 0.005, "fails": 0.02}', 'k' || n, CASE WHEN n % 2 = 0 THEN 1 END FROM n""",
            MANY // 100,
        )


def poll(site: Site, over: threading.Event) -> None:
    """A worker of another program, which knows of `status` only."""
    claimed: list[tuple[int]] = []
    while not over.wait(0 if claimed else 0.01):
        claimed = site.rows(
            "UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs WHERE type = 't' AND status = 'pending'"
            " AND scheduled_at <= ? ORDER BY priority DESC, scheduled_at, id LIMIT 1) RETURNING id",
            time.time(),
        )
        for (job,) in claimed:
            for what in ("start", "end"):
                with site.ledger.open("a") as ledger:
                    ledger.write(f"{what} {job} 0 {os.getpid()} {time.time()}\n")
            site.rows("UPDATE jobs SET status = 'done' WHERE id = ?", job)


def storm(site: Site, more: Deeds = ()) -> dict[int, float]:
    """All of it at once, until all jobs are done. Retries and limits by commands, and as other programs write them."""
    deeds = [
        lambda: site.command("limit", "t", "--max-running", "3"),
        lambda: site.command("jobs", "retry", "--all", "--status", "failed", "--yes"),
        lambda: site.command("limit", "t", "--max-running", "none", "--rate", "400/s"),
        lambda: site.rows("UPDATE jobs SET status = 'pending', attempts = 0 WHERE status = 'failed'"),
        lambda: site.command("limit", "t", "--reset"),
        *more,
    ]
    over = threading.Event()
    with ThreadPoolExecutor() as threads:
        others = [threads.submit(produce, site), threads.submit(poll, site, over)]
        try:
            return kill_workers(site, lambda: statuses(site) == {"done": MANY}, deeds)
        finally:
            over.set()
            for other in others:
                other.result()


def clean(site: Site, killed: dict[int, float]) -> None:
    """No two of a key overlapped, each job was done once, no claim ran twice."""
    keys = dict(site.rows("SELECT id, concurrency_key FROM jobs WHERE type = 't'"))
    assert most_at_once(site, keys, killed) == 1
    done = Counter(job for (job,) in site.rows("SELECT job FROM test_outcomes WHERE status = 'done'"))
    assert done == Counter(keys.keys())
    ledger = Ledger(site.ledger, site.where)
    starts, ends = ledger.tokens("start"), ledger.tokens("end")
    assert keys.keys() == starts.keys() == ends.keys()
    assert [job for job, tokens in starts.items() if repeated(tokens)] == []
    assert [0] in starts.values()  # some were run by the other program


@pytest.mark.parametrize("supervisors", [1, 2])
def test_a_limit_by_key_holds_whoever_inserts_claims_retries_and_dies(make_site: MakeSite, supervisors: int) -> None:
    site = make_site(pool(8 // supervisors, ""), HANDLERS)
    for _ in range(supervisors):
        site.start()
    clean(site, storm(site))


@pytest.mark.postgres
def test_a_limit_by_key_holds_on_two_hosts_of_which_one_dies(
    make_site: MakeSite, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hosts = Hosts(make_site(pool(4, ""), HANDLERS), tmp_path_factory.mktemp("hosts"))
    site, ends, dying = hosts.site, {}, [hosts.start("one")]
    hosts.start("two")

    def die() -> None:
        for host in dying:
            ends.update(dict.fromkeys(family(host.pid), hosts.kill(host)))
            hosts.start("three")
        dying.clear()

    clean(site, storm(site, [die]) | ends)


def cpu_time(supervisor: subprocess.Popen[bytes]) -> float:
    """Seconds, of all its processes so far."""
    times = [psutil.Process(pid).cpu_times() for pid in (supervisor.pid, *family(supervisor.pid))]
    return sum(one.user + one.system for one in times)


def test_a_rate_holds_in_every_second_after_the_workers_were_stopped(make_site: MakeSite) -> None:
    site = make_site(pool(12, 'rate = "50/s"\n'), HANDLERS)
    supervisor = site.start()
    pids = wait_for(lambda: len(found := [slot.pid for slot in site.workers()]) == 12 and found, "workers")
    site.rows(NUMBERS + "INSERT INTO jobs (type) SELECT 't' FROM n", 1000)
    used = cpu_time(supervisor)
    time.sleep(10)
    for stop in (signal.SIGSTOP, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, stop)
        time.sleep(5 if stop == signal.SIGSTOP else 0)
    wait_for(lambda: site.count("done") == 1000, "all to be done", PATIENCE)
    used = cpu_time(supervisor) - used

    begun = sorted(line.at for line in Ledger(site.ledger, site.where).lines() if line.what == "start")
    started = sorted(at for (at,) in site.rows("SELECT started_at FROM jobs WHERE type = 't'"))
    for times in (begun, started):  # a run begins some milliseconds after its claim, which is what counts
        assert all(later - at >= 0.97 for at, later in zip(times, times[50:], strict=False))
    assert used < 0.5 * (begun[-1] - begun[0])


def test_who_comes_late_is_not_starved_by_10_000_jobs_of_another(make_site: MakeSite) -> None:
    site = make_site(pool(1, "fair = true\n"), HANDLERS)  # one worker: they begin in the order of their claims
    insert = NUMBERS + "INSERT INTO jobs (type, fair_key, payload) SELECT 't', ?, '{\"seconds\": 0.005}' FROM n"
    site.rows(insert, MANY, "bob")
    site.start()
    wait_for(lambda: site.count("done") > 100, "some to be done", PATIENCE)
    site.command("pause", "t")
    wait_for(lambda: not site.count("running"), "the pause")
    site.rows(insert, 10, "alice")
    wait_for(lambda: not site.rows("SELECT 1 FROM jobs WHERE hold IN ('due', 'key')"), "them to stand at the gate")
    before = {job for (job,) in site.rows("SELECT id FROM jobs WHERE status <> 'held'")}
    site.command("resume", "t")
    done = "SELECT count(*) FROM jobs WHERE status = 'done' AND fair_key = 'alice'"
    wait_for(lambda: site.rows(done) == [(10,)], "hers to be done", PATIENCE)
    keys = dict(site.rows("SELECT id, fair_key FROM jobs WHERE type = 't'"))
    lines = Ledger(site.ledger, site.where).lines()  # started_at of one that runs is when all of its hand were claimed
    following = [keys[line.job] for line in lines if line.what == "start" and line.job not in before]
    last = len(following) - following[::-1].index("alice")
    assert last <= 20


def graph(site: Site) -> dict[int, tuple[list[int], str]]:
    """1,000 jobs with 3,000 edges: what each comes after, and what it does if one of those fails."""
    jobs: dict[int, tuple[list[int], str]] = {}
    for number in range(1000):
        on_failed = "run" if number % 10 == 0 else "cancel"
        after = random.sample(list(jobs), min(number, 3))
        options = {"after": after, "on_failed": on_failed} if after else {}
        payload = {"seconds": 0.002, "fails": 0.02}
        jobs[site.queue.enqueue("t", payload, max_attempts=1, **options)] = (after, on_failed)
    return jobs


def test_a_graph_keeps_its_order_and_goes_on_when_what_failed_is_retried(make_site: MakeSite) -> None:
    site = make_site(pool(6, ""), HANDLERS)
    site.start()
    with ThreadPoolExecutor() as threads:
        enqueued = threads.submit(graph, site)
        kill_workers(site, lambda: enqueued.done() and ended(site))
    jobs = enqueued.result()
    ledger = Ledger(site.ledger, site.where)
    first_ends = {line.job: line.at for line in ledger.lines() if line.what == "end"}
    found = dict(site.rows("SELECT id, status FROM jobs WHERE type = 't'"))
    for job, (after, on_failed) in jobs.items():  # in the order in which they were enqueued
        hindered = on_failed == "cancel" and any(found[one] != "done" for one in after)
        assert (found[job] == "cancelled") == hindered, (job, found[job], on_failed, {one: found[one] for one in after})
    assert set(found.values()) == {"done", "failed", "cancelled"}

    (site.folder / "mended").touch()
    site.command("jobs", "retry", "--all", "--status", "failed", "--yes")
    kill_workers(site, lambda: ended(site))
    assert statuses(site) == {"done": 1000}
    starts = {line.job: line.at for line in reversed(ledger.lines()) if line.what == "start"}
    ends = {line.job: line.at for line in ledger.lines() if line.what == "end"}
    for job, (after, on_failed) in jobs.items():
        earlier = [(first_ends if on_failed == "run" and job in first_ends else ends).get(one, 0.0) for one in after]
        assert starts[job] >= max(earlier, default=0.0), (job, after)
    assert [job for job, tokens in ledger.tokens("start").items() if repeated(tokens)] == []


def test_a_batch_of_10_000_has_one_callback(make_site: MakeSite) -> None:
    site = make_site(pool(8, ""), HANDLERS)
    site.start()
    site.rows("INSERT INTO job_batches (id, type) VALUES (7, 'plain')")
    for _ in range(10):
        site.rows(NUMBERS + "INSERT INTO jobs (type, batch) SELECT 't', 7 FROM n", MANY // 10)
    site.rows("UPDATE job_batches SET closed = 1 WHERE id = 7")
    kill_workers(site, lambda: site.count("done") == MANY + 1, rest=0.2)
    [(callback, ended_at)] = site.rows("SELECT callback, ended_at FROM job_batches")
    assert site.rows("SELECT id FROM jobs WHERE type = 'plain'") == [(callback,)]
    lines = Ledger(site.ledger, site.where).lines()
    assert [line.job for line in lines].count(callback) == 2  # it started, and ended
    assert min(line.at for line in lines if line.job == callback) >= ended_at
    assert ended_at >= max(line.at for line in lines if line.job != callback and line.what == "end")


def test_10_000_held_jobs_cost_nothing(make_site: MakeSite, tmp_path: Path) -> None:
    text = '[pools.p]\nhandler = "jobs:handle"\ntypes = ["t"]\nmin_workers = 1\nmax_workers = 4\n'
    site = make_site(text, HANDLERS)
    supervisor = site.start()
    site.running_pid(site.queue.enqueue("t", {"until": str(tmp_path / "over")}, concurrency_key="k"))
    used = []
    for count in (0, MANY):
        if count:
            site.rows(NUMBERS + "INSERT INTO jobs (type, concurrency_key) SELECT 't', 'k' FROM n", count)
            wait_for(lambda: not site.rows("SELECT 1 FROM jobs WHERE hold = 'due'"), "them to stand at the gate")
            time.sleep(1.0)  # for what the insertion itself costs
        before = cpu_time(supervisor)
        time.sleep(10)
        used.append(cpu_time(supervisor) - before)
        assert len(site.workers()) == 1
    assert site.count("held") == MANY
    assert used[1] < used[0] + 0.3
    (tmp_path / "over").touch()
