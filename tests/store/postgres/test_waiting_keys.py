"""Others with the same key at the same moment: who settles waits for no application, and no replacement is lost."""

from __future__ import annotations

import time
from contextlib import closing

import psycopg
import pytest

from supervisor.domain.enqueueing import new_job
from supervisor.domain.job import Status
from supervisor.domain.limits import Limits
from supervisor.domain.settlement import released
from supervisor.store.base import Engine
from tests.stopwatch import Stopwatch
from tests.store.kit import Desk, until
from tests.store.postgres.meanwhile import Meanwhile


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("limited", [True, False])
def test_a_settlement_waits_for_no_transaction_with_its_key(
    engine: Engine, desk: Desk, *, commits: bool, limited: bool
) -> None:
    if limited:
        desk.maintenance.gates.choose("tag", Limits(max_running=5), time.time())
    job = new_job("tag", unique_key="k", unique="pending")
    [first] = desk.producer.enqueue([job])
    desk.maintenance.gates.admit_due(time.time())
    claim = desk.one(now=time.time())
    with closing(psycopg.connect(engine.url)) as connection:
        [second] = engine.transactional.insert(connection, [job])
        watch = Stopwatch()
        assert desk.settle(released(claim), now=time.time()) == []
        assert watch.seconds() < 1
        assert desk.status(first) is Status.HELD
        (connection.commit if commits else connection.rollback)()

    def decided() -> bool:
        desk.maintenance.gates.admit_due(time.time())
        return desk.status(first) is not Status.HELD

    until(decided)
    if commits:
        assert desk.job(first).last_error == f"superseded by job {second}"
        assert desk.status(second) is Status.PENDING
    else:
        assert desk.status(first) is Status.PENDING
        assert desk.producer.put(job) == (first, False)


def test_what_would_replace_a_job_that_is_just_being_claimed_is_a_new_one(
    engine: Engine, desk: Desk, foreign: psycopg.Connection
) -> None:
    [first] = desk.producer.enqueue([new_job("tag", {"n": 1}, unique_key="k", unique="pending")])
    late = new_job("tag", {"n": 2}, unique_key="k", unique="pending", on_duplicate="replace")
    with closing(psycopg.connect(engine.url)) as claiming:
        claiming.execute("UPDATE jobs SET status = 'running' WHERE id = %s", (first,))
        answer = Meanwhile(foreign, lambda: desk.producer.put(late))
        claiming.commit()
    second, new = answer.result()
    assert new
    assert [desk.job(job).payload for job in (first, second)] == [{"n": 1}, {"n": 2}]
