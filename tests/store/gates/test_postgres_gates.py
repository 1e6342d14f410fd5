"""What rows and limits that change under the gates do on PostgreSQL, where only the maintainer and workers admit."""

from __future__ import annotations

import time

import pytest

from supervisor.domain.job import Status
from tests.store.gates.conftest import Gates, execute
from tests.store.gates.test_after import after, edges


@pytest.fixture(params=["postgres"])
def engine(engine):  # type: ignore[no-untyped-def]
    return engine


def due(gates: Gates, job: int) -> float:
    """Seconds until it is."""
    return float(execute(gates._raw, f"SELECT scheduled_at FROM jobs WHERE id = {job}")[0][0]) - time.time()


def test_what_is_retried_waits_for_its_predecessors_again(gates: Gates) -> None:
    a = gates.one()
    b = after(gates, a)
    d = after(gates, b)
    actions = gates.desk.operations.actions
    actions.cancel(b, time.time())
    gates.tend()
    assert gates.status(b, d) == ["cancelled", "cancelled"]
    actions.retry([b], time.time())
    gates.tend()
    assert (gates.hold(b), gates.hold(d)) == ("after", "after")
    gates.work(a, Status.FAILED)
    gates.sql("UPDATE jobs SET status = 'pending' WHERE status IN ('failed', 'cancelled')")
    assert gates.pending() == [a]
    assert (gates.hold(b), gates.hold(d)) == ("after", "after")
    gates.work(a, Status.FAILED)
    actions.retry([b], time.time())  # in spite of that
    gates.tend()
    gates.work(b)
    gates.work(d)
    assert edges(gates) == 0


def test_a_unique_key_that_another_job_has_now_keeps_one_from_waiting_again(gates: Gates) -> None:
    a = gates.one()
    b, c = after(gates, a, unique_key="k"), after(gates, a)
    gates.work(a, Status.FAILED)
    gates.one(unique_key="k")
    gates.desk.operations.actions.retry([a], time.time())
    gates.tend()
    assert gates.status(a, b, c) == ["pending", "cancelled", "held"]


def test_deleted_rows_leave_their_room(gates: Gates) -> None:
    gates.limit("mail", max_running=1)
    keyed, typed = gates.put(3, concurrency_key="a"), gates.put(3, "mail")
    gates.sql(f"DELETE FROM jobs WHERE id IN ({keyed[0]}, {keyed[1]}, {typed[0]}, {typed[1]})")
    assert gates.pending() == keyed[2:]
    assert gates.pending("mail") == typed[2:]


def test_a_deleted_predecessor_has_failed(gates: Gates) -> None:
    a = gates.one()
    b, cleanup = after(gates, a), after(gates, a, on_failed="run")
    d = after(gates, b)
    gates.sql(f"DELETE FROM jobs WHERE id = {a}")
    assert gates.status(b, d) == ["cancelled", "cancelled"]
    assert gates.desk.job(b).last_error == f"cancelled: job {a}, before it, was deleted"
    assert gates.pending() == [cleanup]
