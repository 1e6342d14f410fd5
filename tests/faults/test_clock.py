"""The wall clock leaps by two hours, ahead and back: no lock moves."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor import Status
from tests.faults.shifted_clock import Clock
from tests.faults.surroundings import GATED, stays
from tests.site_under_test import MakeSite, Site, wait_for

HOUR = 3600
POOL = """
[pools.work]
handler = "jobs:gated"
workers = 1
lock_time = "1s"
"""
CLAIM = "UPDATE jobs SET status = 'running' WHERE id = ?"
SETTLE = "UPDATE jobs SET status = 'done' WHERE id = ?"


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[Clock]:
    made = Clock(tmp_path)
    yield made
    made.leap_to(0)


@pytest.mark.sqlite
@pytest.mark.fault(27)
def test_no_lock_moves_when_the_clock_leaps_by_two_hours(make_site: MakeSite, clock: Clock, tmp_path: Path) -> None:
    """Not ours, with two supervisors and locks of a second; nor a foreign program's of an hour."""
    gate = tmp_path / "gate"
    site = make_site(POOL, GATED)
    for _ in range(2):
        site.start(env=clock.environment)
    jobs = site.queue.enqueue_many("work", [{"gate": str(gate)}] * 2)
    for job in jobs:
        site.running_pid(job)
    [(foreign,)] = site.rows("INSERT INTO jobs(type) VALUES ('foreign') RETURNING id")
    site.rows(CLAIM, foreign)
    held = locks(site)
    for shift in (2 * HOUR, 0, -2 * HOUR, 2 * HOUR):
        clock.leap_to(shift)
        stays(lambda: locks(site) == held, 1.0)
    assert {site.job(job).status for job in (*jobs, foreign)} == {Status.RUNNING}
    site.rows(SETTLE, foreign)
    gate.touch()
    for job in jobs:
        finished = site.done(job)
        assert isinstance(finished.result, float)
        assert finished.result > time.time() + HOUR  # the handlers' clock really was another
    site.verdict(others=[foreign])
    assert not site.event("lock_reclaimed")
    assert not site.event("worker_died")


RETRIES = """
[pools.work]
handler = "jobs:gated"
workers = 1
[pools.flaky]
handler = "jobs:flaky"
retry = { base = "3s", jitter = 0 }
[[schedules]]
name = "tick"
type = "ticked"
every = "1s"
[[schedules]]
name = "tock"
type = "tocked"
cron = "* * * * *"
"""
FLAKY = """
def flaky(payload, ctx):
    if ctx.attempt == 1:
        raise ValueError("again")
"""


@pytest.mark.sqlite
@pytest.mark.fault(27)
def test_schedules_retries_and_waiting_jobs_go_on_when_the_clock_is_set_back(
    make_site: MakeSite, clock: Clock, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    site = make_site(RETRIES, GATED + FLAKY)
    site.start(env=clock.environment)
    running, waiting = site.queue.enqueue_many("work", [{"gate": str(gate)}] * 2)
    site.running_pid(running)
    retried = site.queue.enqueue("flaky")
    wait_for(lambda: site.job(retried).attempts == 1 and site.job(retried).status == "pending", "a failed attempt")
    wait_for(lambda: site.rows("SELECT 1 FROM jobs WHERE type = 'ticked'"), "a tick")

    clock.leap_to(-2 * HOUR)

    assert site.done(retried).attempts == 2
    gate.touch()
    site.done(waiting)
    ticks = "SELECT count(*) FROM jobs WHERE type = 'ticked' AND scheduled_at < ?"
    wait_for(lambda: site.rows(ticks, time.time() - HOUR) > [(2,)], "ticks")
    for name in ("tick", "tock"):
        assert site.told("schedule_replanned", schedule=name)
    [(next_minute,)] = site.rows("SELECT next_at FROM job_schedules WHERE name = 'tock'")
    assert next_minute < time.time() - HOUR


def locks(site: Site) -> list[tuple[int, int, str]]:
    """Who holds what: a lock that moved has another token, another owner, or is no more."""
    with contextlib.closing(sqlite3.connect(site.database, timeout=30)) as connection:
        return connection.execute("SELECT id, claim_token, locked_by FROM jobs WHERE status = 'running'").fetchall()
