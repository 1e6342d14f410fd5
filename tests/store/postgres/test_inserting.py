"""Many jobs with options of their own are copied, which must write what INSERTs write."""

from __future__ import annotations

import os
import select

import psycopg
import pytest

from supervisor.domain.errors import StoreError
from supervisor.domain.job import NewJob
from supervisor.store.base import Engine
from tests.store.kit import T0, Desk

ODD = 'tab\\t, "line\n\r\t \\\\N \\. " é \U0001f600'


def several(count: int) -> list[NewJob]:
    return [
        NewJob(
            "tag" if number % 2 else "caption",
            f'{{"number": {number}}}' if number % 5 else ODD,
            priority=number % 7,
            requires="" if number % 3 else "gpu\tcpu",
            scheduled_at=T0 + number / 3,
            max_attempts=number % 4 or None,
            extra={} if number % 6 else {"meta": '{"tags": ["a\\n"]}'},
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("count", [999, 1000, 2500])
def test_what_is_copied_is_what_was_given(desk: Desk, count: int) -> None:
    jobs = several(count)
    first = desk.producer.enqueue(jobs[:10])
    ids = desk.producer.enqueue(jobs)
    assert ids == list(range(first[-1] + 1, first[-1] + 1 + count))
    for job_id, given in zip(ids, jobs, strict=True):
        if job_id % 97 == 0 or job_id - ids[0] < 10:
            job = desk.job(job_id)
            assert (job.type, job.priority, job.requires) == (given.type, given.priority, given.requires)
            assert (job.scheduled_at, job.max_attempts) == (given.scheduled_at, given.max_attempts)
            assert (job.meta is None) == ("meta" not in given.extra)
            assert job.created_at == job.updated_at
            assert job.status.value == "pending"
    assert desk.put() == ids[-1] + 1  # the sequence has moved on


def test_payloads_are_copied_byte_by_byte(desk: Desk, foreign: psycopg.Connection) -> None:
    ids = desk.producer.enqueue(several(1000))
    row = foreign.execute("SELECT payload, scheduled_at FROM jobs WHERE id = %s", (ids[0],)).fetchone()
    assert row == (ODD, T0)


def test_one_that_is_refused_takes_all_of_them_along(desk: Desk, foreign: psycopg.Connection) -> None:
    jobs = several(1000)
    with pytest.raises(StoreError):
        desk.producer.enqueue([*jobs[:999], jobs[0]._replace(priority=1000)])
    assert foreign.execute("SELECT count(*) FROM jobs").fetchone() == (0,)
    assert len(desk.producer.enqueue(jobs)) == 1000


def test_copied_jobs_wake_whoever_sleeps(desk: Desk, engine: Engine) -> None:
    feed = engine.changes()
    feed.version()
    feed.resume()
    desk.producer.enqueue(several(1000))
    descriptor = feed.fileno()
    assert descriptor is not None
    readable, _, _ = select.select([descriptor], [], [], 20.0)
    assert readable
    assert feed.drain()
    feed.close()


@pytest.mark.parametrize("count", [1, 10, 1000])
def test_after_a_promotion_ids_go_on_far_above_those_that_the_old_primary_may_have_given(
    desk: Desk, foreign: psycopg.Connection, count: int
) -> None:
    before = desk.put()
    foreign.execute("SELECT setval('job_timeline', 77)")
    ids = desk.producer.enqueue(several(count))
    assert ids[0] > before + 10_000_000
    assert desk.put() == ids[-1] + 1  # once


def test_whoever_may_only_enqueue_can_do_so_after_a_promotion(desk: Desk, foreign: psycopg.Connection) -> None:
    role = f"enqueuer_{os.getpid()}"
    foreign.execute(
        f"CREATE ROLE {role}; GRANT INSERT, SELECT ON jobs TO {role}; GRANT USAGE, SELECT ON jobs_id_seq TO {role};"
        f" GRANT SELECT ON job_sleepers TO {role}"  # what was needed before there were promotions
    )
    try:
        foreign.execute(f"SELECT setval('job_timeline', 77); SET ROLE {role}")
        row = foreign.execute("INSERT INTO jobs (type) VALUES ('tag') RETURNING id").fetchone()
    finally:
        foreign.execute(f"RESET ROLE; DROP OWNED BY {role}; DROP ROLE {role}")
    assert row is not None
    assert row[0] > 10_000_000
