"""Connections that end while they are used: nothing is lost, nothing is done twice, and the next call goes on."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest

from supervisor.domain.errors import EnqueueUncertain, StoreUnavailable
from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import done
from supervisor.store.base import Engine
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import FORKS
from tests.postgres_server import Databases
from tests.store.kit import NOW, T0, Desk


def test_whatever_was_idle_goes_on_after_the_server_has_ended_all_sessions(
    desk: Desk, engine: Engine, postgres: Databases
) -> None:
    first = desk.put()
    assert postgres.kill_backends(engine.url) >= 1
    second = desk.put()
    assert [job.id for job in desk.operations.jobs.latest(status=None, type=None, before=None, limit=9)] == [
        second,
        first,
    ]
    assert desk.maintenance.locks.renew(["w1"], NOW, NOW) == 0
    assert desk.maintenance.locks.writable() is True


def test_a_worker_whose_connection_has_ended_claims_with_its_next_call(
    desk: Desk, engine: Engine, postgres: Databases
) -> None:
    jobs = [desk.put(), desk.put()]
    claim = desk.one()
    postgres.kill_backends(engine.url)
    with pytest.raises(StoreUnavailable):
        desk.settle(done(claim, None))

    assert desk.settle(done(claim, None)) == []
    assert desk.one().job_id == jobs[1]
    assert desk.status(jobs[0]) is Status.DONE


class Cut:
    """Ends the session at COMMIT: before the server has got it, or after it has done it."""

    def __init__(self, url: str, *, after: bool) -> None:
        self._url = url
        self._after = after
        self.times = 1

    def execute(self, execute: Callable[..., object], raw: psycopg.Connection, sql: object, *more: object) -> object:
        if sql != "COMMIT" or not self.times:
            return execute(raw, sql, *more)
        self.times -= 1
        if self._after:
            execute(raw, sql, *more)
        with psycopg.connect(self._url, autocommit=True) as killer:
            killer.execute("SELECT pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])
        return execute(raw, "SELECT 1")


@pytest.fixture
def cut(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], Cut]:
    def cut(after: bool) -> Cut:
        one = Cut(engine.url, after=after)
        execute = psycopg.Connection.execute

        def patched(raw: psycopg.Connection, sql: object, *more: object) -> object:
            return one.execute(execute, raw, sql, *more)

        monkeypatch.setattr(psycopg.Connection, "execute", patched)
        return one

    return cut


def test_an_enqueue_whose_commit_was_done_is_acknowledged_although_its_answer_was_lost(
    desk: Desk, cut: Callable[[bool], Cut]
) -> None:
    cut(True)
    ids = desk.producer.enqueue([NewJob("tag", "{}", scheduled_at=T0)] * 3)

    assert [desk.status(job_id) for job_id in ids] == [Status.PENDING] * 3
    assert desk.operations.statistics.counts() == [("tag", Status.PENDING, 3)]


def test_an_enqueue_whose_commit_never_came_is_an_error_and_no_job(desk: Desk, cut: Callable[[bool], Cut]) -> None:
    cut(False)
    with pytest.raises(StoreUnavailable) as caught:
        desk.put()

    assert not isinstance(caught.value, EnqueueUncertain)
    assert desk.operations.statistics.counts() == []


def test_an_enqueue_of_which_nobody_can_tell_says_so(
    desk: Desk, cut: Callable[[bool], Cut], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut(True)
    monkeypatch.setattr(QUERIES, "transaction_status", "SELECT NULL WHERE %(transaction)s <> ''")

    with pytest.raises(EnqueueUncertain, match="unknown whether the jobs were stored"):
        desk.put()


def test_a_connection_is_refused_in_a_forked_child(desk: Desk) -> None:
    claims = desk.claims
    FORKS.count += 1
    try:
        with pytest.raises(Exception, match="opened before a fork"):
            claims.held_by("w1")
    finally:
        FORKS.count -= 1


@pytest.mark.fault(86)
def test_what_an_interrupted_call_has_left_open_is_no_part_of_the_next(desk: Desk, engine: Engine) -> None:
    """Whoever is interrupted in an instant between two lines leaves a transaction open: what is settled then would
    never be committed.
    """
    job = desk.put()
    claim = desk.one()
    transaction = desk.claims._connection.write()
    transaction.__enter__()
    assert desk.settle(done(claim, None)) == []
    assert desk.status(job) is Status.DONE
    with psycopg.connect(engine.url) as other:
        assert other.execute("SELECT status FROM jobs").fetchall() == [("done",)]
