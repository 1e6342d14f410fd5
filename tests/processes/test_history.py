"""The history with real processes: what was finished stands in it once, whoever is killed in between."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from supervisor.system import counters
from supervisor.system.scoreboard import MAINTAINER_SLOT, Scoreboard, counters_of
from tests.faults.shifted_clock import Clock
from tests.samples import sampled
from tests.site_under_test import Site, kill, wait_for
from tests.web.client import ADMIN, admin_of

MakeSite = Callable[..., Site]
POOLS = """
[pools.work]
handler = "jobs:work"
workers = 2
retry = { max_attempts = 2, base = "10ms", jitter = 0.0 }
[pools.once]
handler = "jobs:once"
workers = 1
"""
HANDLERS = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    if payload.get("fails", 0) >= ctx.attempt:
        raise ValueError("as it was told to")
    record("end", ctx)
    return payload.get("value")

def once(payload, ctx):
    record("start", ctx)
    if ctx.token == 1:
        time.sleep(60)
    record("end", ctx)
"""
JOBS = [{"fails": 0}] * 12 + [{"fails": 1}] * 5 + [{"fails": 9}] * 3  # 17 end well, 11 attempts fail


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    made = Clock(tmp_path)
    yield made
    made.leap_to(0)


def recorded(site: Site) -> dict[str, tuple[int, int]]:
    """(done, failed) of each type, as the history has it."""
    rows = site.rows("SELECT type, sum(done), sum(failed) FROM job_history GROUP BY type")
    return {type_: (done, failed) for type_, done, failed in rows if done or failed}


def happened(site: Site) -> dict[str, tuple[int, int]]:
    """The same, as the jobs and their errors have it."""
    sql = """
    SELECT type, sum(status = 'done'), (SELECT count(*) FROM job_errors e JOIN jobs f ON f.id = e.job_id
                                        WHERE f.type = j.type)
    FROM jobs j WHERE type <> 'never' GROUP BY type
    """
    return {type_: (done, failed) for type_, done, failed in site.rows(sql)}


def work_off(site: Site) -> None:
    jobs = site.queue.enqueue_many("work", JOBS)
    wait_for(lambda: all(site.job(job).status.finished for job in jobs), "the jobs to end")


def counted(site: Site) -> dict[str, tuple[int, int]]:
    """The same, as the counters of all supervisors have it."""
    found = counters.Counters()
    for board in site.scoreboards():
        found.add(counters.read(counters_of(board)))
    return {type_: (counters.done, counters.failed) for type_, counters in found.types.items()}


def beat(site: Site) -> float:
    """When the maintainer last went round, in monotonic seconds."""
    board = Scoreboard.open(site.scoreboards()[0])
    assert board is not None
    return board.slot(MAINTAINER_SLOT).read().beat


def in_status(site: Site) -> dict[str, str]:
    """The row of the type, by the heads of its columns."""
    types = site.command("status").stdout.partition("Types, slowest first")[2].splitlines()
    heading, row = (next(line for line in types if line.startswith(start)) for start in ("TYPE ", "work "))
    return dict(zip(heading.split(), row.split(), strict=True))


def test_what_was_done_and_what_failed_is_counted_shown_and_recorded(make_site: MakeSite) -> None:
    site = make_site(POOLS + ADMIN, HANDLERS)
    supervisor = site.start()
    admin = admin_of(site, supervisor)
    work_off(site)
    wait_for(lambda: counted(site) == {"work": (17, 11)}, "the tallies")
    [path] = [counters_of(board) for board in site.scoreboards()]
    work = counters.read(path).types["work"]
    assert sum(work.run) == sum(work.wait) == 28
    assert 0 < work.run_seconds < 20
    # What ended in the current minute counts beside its failures.
    shown = in_status(site)
    assert (shown["DONE/H"], shown["ERRORS/H"]) == ("17", "11")
    assert shown["WAIT"] != "–"
    answer = httpx.get(admin.listen, headers=admin.bearer | {"Accept": "text/html"}, timeout=60)
    page = " ".join(re.sub("<[^>]*>", " ", answer.text).split())
    assert "Done in the last hour 17 " in page
    assert "Failed attempts 11 in the last hour, 39 % of runs" in page
    assert json.loads(site.command("status", "--json").stdout)["last_hour"]["failed"] == 11

    assert site.stop(supervisor) == 0
    assert recorded(site) == happened(site) == {"work": (17, 11)}
    [(run, wait)] = site.rows("SELECT sum(run_seconds), sum(wait_seconds) FROM job_history")
    assert (run, wait) == pytest.approx((work.run_seconds, work.wait_seconds))
    assert not path.exists()
    said = json.loads(site.command("status", "--json").stdout)
    [hour] = [view["last_hour"] for view in said["types"] if view["type"] == "work"]
    assert (hour["done"], hour["failed"]) == (17, 11)
    assert 0 < hour["mean_run"] < 1
    assert 0 < hour["mean_wait"] < 10
    shown = in_status(site)
    assert shown["DONE/H"] == "17"
    # Failed attempts, however long, are in neither of the two.
    site.rows("UPDATE job_history SET run_seconds = 1e6")
    assert list(in_status(site).values())[-2:] == list(shown.values())[-2:]


@pytest.mark.parametrize(
    "place", sampled(["count_on", "add_minute", "count_on.before", "add_minute.committed"], quick=2)
)
def test_a_maintainer_killed_at_its_writing_loses_nothing_and_doubles_nothing(
    make_site: MakeSite, clock: Clock, place: str
) -> None:
    site = make_site(POOLS, HANDLERS)
    point = f"maintainer:{place}=kill"
    supervisor = site.start(env=clock.environment | site.failpoints(point))
    work_off(site)
    clock.leap_to(60)
    site.hit(point)
    work_off(site)
    clock.leap_to(120)
    wait_for(lambda: len(site.rows("SELECT DISTINCT minute FROM job_history")) >= 1, "a minute")
    work_off(site)
    assert site.stop(supervisor) == 0
    assert recorded(site) == happened(site) == {"work": (3 * 17, 3 * 11)}


def add_three_hours(site: Site) -> None:
    begun = time.time() // 3600 * 3600 - 40 * 3600
    rows = ", ".join(f"({begun + n * 60}, 'old', 1, 2, {n % 7}, 0, 0.5, 0.25)" for n in range(180))
    site.rows(f"INSERT INTO job_history VALUES {rows}")


OLD_ROWS = "SELECT done, failed, waiting, run_seconds, wait_seconds FROM job_history WHERE type = 'old' ORDER BY minute"
ROLLED_UP = [(60, 120, 6, 30.0, 15.0)] * 3  # each hour in one row


QUICK = {("forget_minutes.before", "kill"), ("forget_minutes.committed", "kill"), ("forget_minutes", "fail:full")}
ROLLING_UP = [
    pytest.param(place, action, marks=[] if (place, action) in QUICK else [pytest.mark.long])
    for action in ("kill", "fail:busy", "fail:full", "fail:error")
    for place in (
        *("first_minute.before", "add_hour.before", "add_hour"),
        *("forget_minutes.before", "forget_minutes", "forget_minutes.committed"),
    )
]


@pytest.mark.sqlite
@pytest.mark.fault(70)
@pytest.mark.parametrize(("place", "action"), ROLLING_UP)
def test_hours_are_rolled_up_once_whatever_happens_to_the_maintainer(
    make_site: MakeSite, place: str, action: str
) -> None:
    site = make_site(POOLS, HANDLERS)
    site.queue.create_tables()
    add_three_hours(site)
    point = f"maintainer:{place}={action}"
    supervisor = site.start(env=site.failpoints(point))
    site.hit(point)
    work_off(site)  # the other duties go on
    wait_for(lambda: site.rows(OLD_ROWS) == ROLLED_UP, "hours")
    assert site.stop(supervisor) == 0
    assert [minute % 3600 for (minute,) in site.rows("SELECT minute FROM job_history WHERE type = 'old'")] == [0] * 3
    assert recorded(site) == happened(site) | {"old": (180, 360)}


def test_killed_workers_are_counted_as_failures_and_what_they_had_done_is_not_lost(
    make_site: MakeSite, clock: Clock
) -> None:
    site = make_site(POOLS, HANDLERS)
    supervisor = site.start(env=clock.environment)
    for minute in range(3):
        work_off(site)
        job = site.queue.enqueue("once")
        kill(site.running_pid(job))
        kill(site.maintainer(supervisor))
        site.done(job)
        for worker in site.workers("work"):
            kill(worker.pid)  # an idle one; the next in its place goes on counting
        clock.leap_to(60 * minute + 60)
    assert site.stop(supervisor) == 0
    assert recorded(site) == happened(site) == {"work": (3 * 17, 3 * 11), "once": (3, 3)}


@pytest.mark.parametrize(("place", "lost"), [("settle_done", 0), ("settle_done.committed", 1)])
def test_a_worker_killed_at_its_commit_loses_that_hand_at_most_and_counts_nothing_twice(
    make_site: MakeSite, place: str, lost: int
) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 1\nprefetch = 1\n', HANDLERS)
    point = f"worker:{place}=kill"
    supervisor = site.start(env=site.failpoints(point))
    jobs = site.queue.enqueue_many("work", [{"value": number} for number in range(20)])
    site.hit(point)
    for job in jobs:
        site.done(job)
    assert site.stop(supervisor) == 0
    assert happened(site) == {"work": (20, 0)}
    assert recorded(site) == {"work": (20 - lost, 0)}


def test_what_two_supervisors_finish_adds_up(make_site: MakeSite, clock: Clock) -> None:
    site = make_site(POOLS, HANDLERS)
    supervisors = [site.start(env=clock.environment) for _ in range(2)]
    for minute in range(2):
        work_off(site)
        clock.leap_to(60 * minute + 60)
        wait_for(lambda: sum(map(sum, recorded(site).values())) >= 20, "a minute in the history")
    work_off(site)
    for supervisor in supervisors:
        assert site.stop(supervisor) == 0
    assert recorded(site) == happened(site) == {"work": (3 * 17, 3 * 11)}


def test_a_killed_supervisors_tallies_go_when_it_is_recovered(make_site: MakeSite) -> None:
    site = make_site(POOLS, HANDLERS)
    first = site.start()
    work_off(site)
    [path] = [counters_of(board) for board in site.scoreboards()]
    site.stop(first, signal.SIGKILL)
    second = site.start()
    assert not path.exists()
    work_off(site)
    assert site.stop(second) == 0
    # Of the first one's last minute nobody has told.
    assert recorded(site) == {"work": (17, 11)}


def test_an_idle_supervisor_writes_nothing(make_site: MakeSite, clock: Clock) -> None:
    site = make_site(POOLS, HANDLERS)
    site.start(env=clock.environment)
    with contextlib.closing(sqlite3.connect(site.database)) as connection:

        def version() -> int:
            return int(connection.execute("PRAGMA data_version").fetchone()[0])

        wait_for(lambda: len(site.workers()) == 3 and all(w.state == 2 for w in site.workers()), "idle workers")
        before = version()
        for minute in range(1, 4):
            clock.leap_to(60 * minute)
            at = beat(site)
            wait_for(lambda: beat(site) > at + 2.0, "the maintainer to look twice")  # noqa: B023
        assert version() == before
    assert recorded(site) == {}
