"""Putting jobs in: exactly what was given, exactly once a key."""

from __future__ import annotations

import asyncio
import json
import pickle
import sqlite3
import time
from contextlib import closing

import psycopg
import pytest

from supervisor import AsyncQueue, Queue
from supervisor.domain.errors import StoreBusy
from supervisor.domain.job import AlikeJobs, Delay, NewJob, NewJobs, Status
from supervisor.domain.settlement import Settlement, done
from supervisor.store.base import Engine
from tests.stopwatch import Stopwatch
from tests.store.kit import NOW, T0, Desk


def test_a_job_is_stored_as_it_was_given(desk: Desk) -> None:
    job_id = desk.put(
        "tag",
        payload='{"path":"cat.jpg"}',
        priority=7,
        requires="cpu gpu",
        max_attempts=4,
        unique_key="cat.jpg",
    )

    job = desk.job(job_id)
    assert (job.id, job.type, job.payload, job.status) == (job_id, "tag", {"path": "cat.jpg"}, Status.PENDING)
    assert (job.priority, job.requires, job.scheduled_at) == (7, "cpu gpu", T0)
    assert (job.max_attempts, job.unique_key) == (4, "cat.jpg")
    assert (job.attempts, job.crashes, job.locked_by, job.result, job.last_error) == (0, 0, None, None, None)


def test_a_job_without_a_time_is_due_at_once(desk: Desk) -> None:
    [job_id] = desk.producer.enqueue([NewJob("tag", "{}")])

    job = desk.job(job_id)
    assert job.scheduled_at == job.created_at
    assert [claim.job_id for claim in desk.claim(now=job.scheduled_at)] == [job_id]


def test_many_jobs_get_ids_in_the_order_given_and_run_in_that_order(desk: Desk) -> None:
    jobs = [NewJob("tag", str(n), scheduled_at=T0) for n in range(500)]

    ids = desk.producer.enqueue(jobs)

    assert ids == sorted(set(ids))
    assert [desk.job(job_id).payload for job_id in ids] == list(range(500))
    assert [claim.job_id for claim in desk.claim(want=500)] == ids


EXTRA = {"meta": '{"a": "ä"}', "crashes": 7, "started_at": 5.5}
LATER = {"meta": '{"b": 1}', "crashes": 0, "started_at": Delay(60.0)}
SOME, LATE = NewJob("tag", "{}", extra=EXTRA), NewJob("tag", "2", extra=LATER)
WAYS: dict[str, NewJobs] = {
    "one": [SOME],
    "with a key": [LATE._replace(unique_key="k")],
    "many": [SOME, LATE, NewJob("tag", "{}", extra={"crashes": 1})],
    "alike": AlikeJobs(SOME, ['[{}, "{}"]', "[[]]"], 3),
    "alike, later": AlikeJobs(LATE, ["[{}, 2]"], 2),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_extra_column_of_a_job_is_stored_whichever_way_it_is_inserted(desk: Desk, way: str) -> None:
    jobs = WAYS[way]
    ids = desk.producer.enqueue(jobs)
    for job_id, given in zip(ids, jobs.each() if isinstance(jobs, AlikeJobs) else jobs, strict=True):
        job, started_at = desk.job(job_id), given.extra.get("started_at")
        if isinstance(started_at, Delay):
            started_at = pytest.approx(job.created_at + 60.0, abs=10.0)
        assert (job.payload, job.started_at) == (json.loads(given.payload), started_at)
        assert job.meta == json.loads(str(given.extra.get("meta", "null")))
        assert job.crashes == given.extra["crashes"]


def test_nothing_of_a_batch_is_written_when_one_job_is_refused(desk: Desk) -> None:
    with pytest.raises(Exception, match=r"(?i)check|constraint"):
        desk.producer.enqueue([NewJob("tag", "{}"), NewJob("tag", "{}", priority=101)])

    assert desk.operations.statistics.counts() == []


def test_ids_are_never_used_again(desk: Desk) -> None:
    first = desk.put()
    desk.finish(first)
    assert desk.operations.actions.delete([first]) == 1

    assert desk.put() > first


@pytest.mark.parametrize("payload", ["{broken", "", "5", '"ä\u2028"'])
def test_text_of_any_kind_comes_through_to_the_worker(desk: Desk, payload: str) -> None:
    desk.put(payload=payload)

    assert desk.one().payload == payload


class TestUniqueKeys:
    def test_a_duplicate_returns_the_existing_jobs_id(self, desk: Desk) -> None:
        first = desk.put(unique_key="k")

        assert desk.put(unique_key="k", payload="[2]") == first
        assert desk.producer.enqueue([NewJob("tag", "{}", unique_key="k")] * 3) == [first] * 3
        assert desk.operations.statistics.counts() == [("tag", Status.PENDING, 1)]
        assert desk.put("caption", unique_key="k") != first

    def test_a_running_job_keeps_its_key_and_a_finished_one_gives_it_up(self, desk: Desk) -> None:
        first = desk.put(unique_key="k")
        claim = desk.one()
        assert desk.put(unique_key="k") == first

        desk.settle(done(claim, None))

        assert desk.put(unique_key="k") != first

    def test_a_job_that_is_to_be_cancelled_keeps_its_key_until_it_has_stopped(self, desk: Desk) -> None:
        first = desk.put(unique_key="k")
        claim = desk.one()
        desk.operations.actions.cancel(first, NOW)
        assert desk.put(unique_key="k") == first

        desk.settle(Settlement(first, claim.token, Status.CANCELLED))

        assert desk.put(unique_key="k") != first

    def test_a_bulk_retry_skips_jobs_whose_key_is_taken(self, desk: Desk) -> None:
        failed = []
        for _ in range(2):
            failed.append(desk.put(unique_key="k"))
            desk.finish(failed[-1], Status.FAILED)
        free = desk.put()
        desk.finish(free, Status.FAILED)

        assert desk.operations.actions.retry([*failed, free], NOW) == (2, {failed[1]: failed[0]})
        assert [desk.status(job_id) for job_id in [*failed, free]] == [
            Status.PENDING,
            Status.FAILED,
            Status.PENDING,
        ]


@pytest.mark.parametrize("kind", ["Queue", "unpickled", "AsyncQueue"])
def test_a_queue_waits_for_the_transaction_of_another_program_as_long_as_it_was_told(
    kind: str, engine: Engine, desk: Desk
) -> None:
    async def awaited() -> int:
        async with AsyncQueue(engine.url, busy_timeout=0.2) as queue:
            return await queue.enqueue("tag", unique_key="k")

    def enqueue() -> int:
        if kind == "AsyncQueue":
            return asyncio.run(awaited())
        with Queue(engine.url, busy_timeout=0.2) as queue, pickle.loads(pickle.dumps(queue)) as copy:
            return (copy if kind == "unpickled" else queue).enqueue("tag", unique_key="k")

    file = engine.database.file
    with closing(psycopg.connect(engine.url) if file is None else sqlite3.connect(file)) as other:
        engine.transactional.put(other, NewJob("tag", "{}", unique_key="k"))
        began, watch = time.monotonic(), Stopwatch()
        with pytest.raises(StoreBusy) as busy:
            enqueue()
        assert ("transaction of this thread or request, pass connection=" in str(busy.value)) == (file is not None)
        assert time.monotonic() - began >= 0.2
        assert watch.seconds() < 3
        other.rollback()
    assert desk.job(enqueue()).unique_key == "k"
