"""Jobs after others, and batches."""

from __future__ import annotations

import time

import pytest

from supervisor.domain.job import Status
from tests.store.gates.conftest import Gates


def after(gates: Gates, *others: int, on_failed: str = "cancel", **columns: object) -> int:
    job = gates.one(status="held", hold="after", **columns)
    rows = ", ".join(f"({other}, {job}, '{on_failed}')" for other in others)
    gates.sql(f"INSERT INTO job_after (after_id, job_id, on_failed) VALUES {rows}")
    return job


def edges(gates: Gates) -> int:
    return int(gates.sql("SELECT count(*) FROM job_after")[0][0])


def test_a_job_runs_after_all_its_predecessors(gates: Gates) -> None:
    a, b = gates.put(2)
    c = after(gates, a, b)
    d = after(gates, c)
    gates.work(a)
    assert (gates.hold(c), gates.hold(d)) == ("after", "after")
    gates.work(b)
    assert gates.pending() == [c]
    gates.work(c)
    assert gates.pending() == [d]
    assert edges(gates) == 0


def test_predecessors_that_have_ended_count_at_once(gates: Gates) -> None:
    a, b = gates.put(2)
    gates.work(a)
    gates.work(b, Status.FAILED)
    assert gates.pending() == []
    c = after(gates, a)
    assert gates.pending() == [c]
    assert gates.status(after(gates, b)) == ["cancelled"]


def test_one_that_has_ended_does_not_let_pass_what_has_more(gates: Gates) -> None:
    a, b, c = gates.put(3)
    gates.work(a)
    gates.work(c, Status.FAILED)
    d = after(gates, a, b)
    e = after(gates, a, c)
    assert (gates.hold(d), gates.status(e)) == ("after", ["cancelled"])
    gates.work(b)
    assert gates.pending() == [d]


def test_a_failure_cancels_what_follows_only_from_success(gates: Gates) -> None:
    a = gates.one()
    b = after(gates, a)
    c = after(gates, b)
    cleanup = after(gates, b, on_failed="run")
    gates.work(a, Status.FAILED)
    assert gates.status(b, c) == ["cancelled", "cancelled"]
    assert f"job {a}" in (gates.desk.job(b).last_error or "")
    assert gates.pending() == [cleanup]


def test_a_retry_of_the_failed_one_rearms_what_was_cancelled(gates: Gates) -> None:
    a = gates.one()
    b = after(gates, a)
    c = after(gates, b)
    gates.work(a, Status.FAILED)
    gates.desk.operations.actions.retry([a], time.time())
    gates.tend()
    assert (gates.hold(b), gates.hold(c)) == ("after", "after")
    for job in (a, b, c):
        assert gates.pending() == [job]
        gates.work(job)
    assert edges(gates) == 0


def test_only_the_retry_of_all_that_have_failed_rearms_what_came_after_them(gates: Gates) -> None:
    a, b = gates.put(2)
    c = after(gates, a, b)
    d = after(gates, c, a)
    for job in (a, b):
        gates.work(job, Status.FAILED)
    for again, held in ((a, False), (b, True)):
        gates.desk.operations.actions.retry([again], time.time())
        gates.tend()
        assert (gates.status(c, d) == ["held", "held"]) is held
        assert (gates.status(c, d) == ["cancelled", "cancelled"]) is not held
    gates.work(a, Status.FAILED)
    assert gates.status(c, d) == ["cancelled", "cancelled"]
    gates.desk.operations.actions.retry([a], time.time())
    gates.tend()
    for job in (a, b, c, d):
        gates.work(job)
    assert edges(gates) == 0


def test_what_has_succeeded_rearms_nothing_that_another_failure_has_cancelled(gates: Gates) -> None:
    a, b = gates.put(2)
    c = after(gates, a, b)
    gates.work(a, Status.FAILED)
    gates.work(b)
    assert gates.status(c) == ["cancelled"]
    gates.desk.operations.actions.retry([a], time.time())
    gates.tend()
    gates.work(a)
    assert gates.pending() == [c]


def test_a_repeated_attempt_ends_nothing_and_a_cancelled_predecessor_has_failed(gates: Gates) -> None:
    a = gates.one()
    b = after(gates, a)
    gates.work(a, Status.PENDING)
    assert gates.hold(b) == "after"
    gates.desk.operations.actions.cancel(a, time.time())
    gates.tend()
    assert gates.status(b) == ["cancelled"]


def test_what_a_foreign_program_settles_is_followed(gates: Gates) -> None:
    a = gates.one()
    b = after(gates, a)
    for status in ("running", "done"):
        gates.sql(f"UPDATE jobs SET status = '{status}' WHERE id = {a}")
    assert gates.pending() == [b]


def test_what_follows_passes_its_own_gates(gates: Gates) -> None:
    first = gates.one(concurrency_key="a")
    a = gates.one("mail")
    b = after(gates, a, concurrency_key="a")
    later = after(gates, a, concurrency_key="b", scheduled_at=time.time() + 60)
    gates.work(a)
    assert (gates.hold(b), gates.hold(later)) == ("key", "due")
    gates.work(first)
    assert gates.pending() == [b]


def test_a_wide_graph_ends(gates: Gates) -> None:
    root = gates.one()
    middle = [after(gates, root) for _ in range(20)]
    end = after(gates, *middle)
    gates.work(root)
    assert gates.pending() == middle
    for job in middle:
        assert gates.hold(end) == "after"
        gates.work(job)
    assert gates.pending() == [end]


def batch(gates: Gates, number: int = 1, closed: int = 1) -> None:
    gates.sql(f"INSERT INTO job_batches (id, type, payload, closed) VALUES ({number}, 'sum', '{{}}', {closed})")


def test_a_batch_calls_back_once_when_its_last_job_has_ended(gates: Gates) -> None:
    batch(gates, closed=0)
    jobs = [*gates.put(2, batch=1), gates.one("mail", batch=1)]
    gates.work(jobs[0])
    gates.work(jobs[1], Status.FAILED)
    gates.sql("UPDATE job_batches SET closed = 1 WHERE id = 1")
    assert gates.pending("sum") == []
    gates.work(jobs[2])
    [callback] = gates.pending("sum")
    assert gates.sql("SELECT callback FROM job_batches WHERE ended_at IS NOT NULL") == [(callback,)]
    gates.desk.operations.actions.retry([jobs[1]], time.time())
    gates.work(jobs[1])
    assert gates.pending("sum") == [callback]


@pytest.mark.parametrize("ended", [False, True])
def test_a_batch_without_unfinished_jobs_calls_back_when_it_is_closed(gates: Gates, *, ended: bool) -> None:
    batch(gates, closed=0)
    if ended:
        gates.work(gates.one(batch=1))
    assert gates.pending("sum") == []
    gates.sql("UPDATE job_batches SET closed = 1 WHERE id = 1")
    assert len(gates.pending("sum")) == 1


def test_held_jobs_of_a_batch_are_waited_for(gates: Gates) -> None:
    batch(gates)
    first, second = gates.put(2, batch=1, concurrency_key="a")
    gates.work(first)
    assert gates.pending("sum") == []
    gates.work(second)
    assert len(gates.pending("sum")) == 1


def test_cancelled_by_what_was_before_it_a_job_ends_its_batch(gates: Gates) -> None:
    a = gates.one()
    batch(gates)
    after(gates, a, batch=1)
    gates.work(a, Status.FAILED)
    gates.tend()
    assert len(gates.pending("sum")) == 1
