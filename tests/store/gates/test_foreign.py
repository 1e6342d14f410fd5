"""What SQL and deletions do to jobs that are held, to those after them, and to their batches."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from supervisor.domain.job import Status
from supervisor.domain.settlement import done
from supervisor.store.base import Engine
from supervisor.store.moving import CLOSED_FOR, MoveEnd
from tests.stopwatch import Stopwatch
from tests.store.gates.conftest import Gates, connect, execute
from tests.store.gates.test_after import after, batch, edges

SET = "UPDATE jobs SET status ="
ON_SQLITE = pytest.mark.parametrize("engine", ["sqlite"], indirect=True)


def chain(gates: Gates, count: int = 3) -> list[int]:
    jobs = [gates.one()]
    while len(jobs) < count:
        jobs.append(after(gates, jobs[-1]))
    return jobs


def retry(gates: Gates, *jobs: int) -> None:
    gates.desk.operations.actions.retry(jobs, time.time())
    gates.tend()


def why(gates: Gates, job: int) -> str:
    return gates.desk.job(job).last_error or ""


def test_a_start_by_sql_of_what_is_held_changes_nothing(gates: Gates) -> None:
    gates.limit(max_running=1)
    jobs = gates.put(3)
    keyed = gates.put(3, "mail", concurrency_key="k")
    gates.sql(f"{SET} 'pending' WHERE status NOT IN ('done', 'failed')")
    gates.sql(f"{SET} 'pending' WHERE status = 'held' AND concurrency_key = 'k'")
    gates.sql(f"{SET} 'running' WHERE id IN ({jobs[2]}, {keyed[2]})")
    assert (gates.pending(), gates.pending("mail")) == (jobs[:1], keyed[:1])
    assert [gates.hold(job) for job in jobs[1:] + keyed[1:]] == ["type", "type", "key", "key"]
    gates.work(jobs[0])
    assert gates.pending() == jobs[1:2]
    assert gates.desk.operations.actions.run_now(jobs[2], time.time())
    assert gates.pending() == jobs[1:]
    gates.sql(f"{SET} 'cancelled' WHERE id = {keyed[2]}")
    assert gates.status(keyed[2]) == ["cancelled"]


@pytest.mark.parametrize("by_sql", [True, False])
def test_a_cancelled_job_that_is_to_run_again_waits_for_those_before_it(gates: Gates, *, by_sql: bool) -> None:
    a, b = chain(gates, 2)
    gates.desk.operations.actions.cancel(b, time.time())
    if by_sql:
        gates.sql(f"{SET} 'pending' WHERE id = {b}")
    else:
        retry(gates, b)
    assert (gates.hold(b), gates.pending()) == ("after", [a])
    gates.work(a)
    assert gates.pending() == [b]


def test_one_before_it_has_failed_and_another_is_to_come(gates: Gates) -> None:
    a, other = gates.put(2)
    b = after(gates, a, other)
    c = after(gates, b)
    gates.work(a, Status.FAILED)
    retry(gates, b)
    assert gates.status(b, c) == ["cancelled", "cancelled"]
    assert f"job {a}, before it" in why(gates, b)


@pytest.mark.parametrize("by_sql", [True, False])
def test_a_chain_that_is_set_back_waits_again_in_whatever_order(gates: Gates, *, by_sql: bool) -> None:
    jobs = chain(gates)
    gates.work(jobs[0], Status.FAILED)
    if by_sql:
        gates.sql(f"{SET} 'pending' WHERE status IN ('failed', 'cancelled')")
    for job in [] if by_sql else reversed(jobs):
        retry(gates, job)
    for job in jobs:
        assert gates.pending() == [job]
        gates.work(job)


def test_what_follows_one_that_is_retried_by_hand_follows_it(gates: Gates) -> None:
    a, b, c = chain(gates)
    gates.work(a, Status.FAILED)
    retry(gates, b)
    assert (gates.pending(), gates.hold(c)) == ([b], "after")
    gates.work(b)
    assert gates.pending() == [c]


def test_only_one_of_those_with_a_unique_key_waits_again(gates: Gates) -> None:
    a = gates.one()
    b = after(gates, a, unique_key="k")
    c = after(gates, b)
    gates.work(a, Status.FAILED)
    d, newer = (after(gates, a, unique_key=key) for key in "lk")
    other = gates.one(unique_key="l")
    retry(gates, a)
    assert (gates.status(b, c, d), gates.hold(newer)) == (["cancelled"] * 3, "after")
    for job, twin in ((b, newer), (d, other)):
        assert f"job {twin} has its unique key" in why(gates, job)


@pytest.mark.parametrize("columns", [{}, {"concurrency_key": "k"}])
def test_a_deletion_makes_room_and_ends_a_batch(gates: Gates, columns: dict[str, str]) -> None:
    gates.limit(max_running=None if columns else 1)
    batch(gates)
    jobs = gates.put(3, batch=1, **columns)
    for job in jobs:
        assert (gates.pending(), gates.pending("sum")) == ([job], [])
        if job == jobs[1]:
            gates.claim()
        gates.sql(f"DELETE FROM jobs WHERE id = {job}")
    assert len(gates.pending("sum")) == 1


@pytest.mark.parametrize("keys", ["OFF", "ON"])
def test_a_deleted_predecessor_has_failed(gates: Gates, engine: Engine, keys: str) -> None:
    if engine.url.startswith("sqlite:"):
        gates.sql(f"PRAGMA foreign_keys = {keys}")
    a, b, c = chain(gates)
    cleanup, later = after(gates, a, on_failed="run"), after(gates, b, on_failed="run")
    gates.sql(f"DELETE FROM jobs WHERE id = {a}")
    assert gates.status(b, c) == ["cancelled", "cancelled"]
    assert why(gates, b) == f"cancelled: job {a}, before it, was deleted"
    assert gates.pending() == [cleanup, later]
    retry(gates, b)
    assert (b in gates.pending(), gates.hold(c)) == (True, "after")
    gates.sql(f"DELETE FROM jobs WHERE id = {c}")
    gates.work(b)
    assert edges(gates) == 0


@ON_SQLITE
def test_the_sweep_finds_predecessors_that_there_never_were(gates: Gates) -> None:
    b = after(gates, 1000)
    cleanup = after(gates, 1000, on_failed="run")
    assert (gates.hold(b), gates.hold(cleanup)) == ("after", "after")
    gates.desk.maintenance.gates.sweep(time.time())
    assert (gates.status(b), gates.pending()) == (["cancelled"], [cleanup])
    assert "job 1000, before it, was deleted" in why(gates, b)


def test_the_newest_of_a_key_takes_the_place_of_the_others(gates: Gates) -> None:
    gates.limit(max_running=1, on_conflict="cancel_running")
    gates.limit("sum", max_running=1)
    busy = gates.one("sum")
    batch(gates)
    p, q = gates.one(concurrency_key="p", batch=1), gates.one(concurrency_key="q")
    assert gates.pending() == [p]
    newest = gates.one(concurrency_key="p")
    assert (gates.status(p), gates.pending(), gates.hold(newest)) == (["cancelled"], [q], "type")
    [(callback,)] = gates.sql("SELECT callback FROM job_batches")
    assert (gates.hold(callback), gates.pending("sum")) == ("type", [busy])
    gates.work(busy)
    assert gates.pending("sum") == [callback]


def test_a_job_that_runs_already_joins_a_batch(gates: Gates) -> None:
    batch(gates, closed=0)
    job = gates.one()
    [claim] = gates.claim()
    gates.sql(f"UPDATE jobs SET batch = 1 WHERE id = {job}")
    gates.sql("UPDATE job_batches SET closed = 1")
    assert (gates.status(job), gates.pending("sum")) == (["running"], [])
    gates.settle(done(claim, None))
    gates.tend()
    assert len(gates.pending("sum")) == 1


@pytest.mark.parametrize("status", ["failed", "done"])
@ON_SQLITE
def test_triggers_that_may_call_themselves_change_nothing(gates: Gates, engine: Engine, status: str) -> None:
    jobs = chain(gates, 300)
    batch(gates)
    after(gates, jobs[-1], batch=1)
    raw = connect(engine.url)
    raw.execute("PRAGMA recursive_triggers = ON")
    watch = Stopwatch()
    execute(raw, f"{SET} '{status}' WHERE id = {jobs[0]}")
    gates.tend()
    assert watch.seconds() < 1
    raw.close()
    others = gates.status(*jobs[1:])
    assert others == (["cancelled"] * 299 if status == "failed" else ["pending"] + ["held"] * 298)
    assert len(gates.pending("sum")) == (status == "failed")


@ON_SQLITE
def test_a_worker_lets_pass_what_another_program_has_just_inserted(gates: Gates) -> None:
    gates.limit(max_running=1)
    execute(gates._raw, "INSERT INTO jobs (type) VALUES ('tag'), ('tag')")
    assert (gates.status(1, 2), gates.hold(1)) == (["held", "held"], "due")
    [claim] = gates.claim(2)
    assert (claim.job_id, gates.hold(2)) == (1, "type")


@ON_SQLITE
@pytest.mark.parametrize("verb", ["ABORT", "ROLLBACK"])
def test_what_a_rule_of_the_application_refuses_holds_up_nothing_else(gates: Gates, verb: str) -> None:
    refuse = f"SELECT RAISE({verb}, 'no sums')"
    gates.sql(f"CREATE TRIGGER rule BEFORE INSERT ON jobs WHEN NEW.type = 'sum' BEGIN {refuse}; END")
    gates.sql("INSERT INTO job_batches (id, type, closed) VALUES (8, 'sum', 0), (9, 'report', 0)")
    first, second = gates.one(batch=8, concurrency_key="k"), gates.one(batch=9)
    gates.sql("UPDATE job_batches SET closed = 1")
    a, b = gates.put(2, concurrency_key="k")
    execute(gates._raw, f"{SET} 'cancelled' WHERE id IN ({first}, {second}, {a})")
    gates.tend()
    assert (gates.status(b), gates.pending("report")) == (["pending"], [b + 1])
    gates.sql("DROP TRIGGER rule")
    gates.desk.maintenance.gates.sweep(time.time())
    assert gates.pending("sum") == [b + 2]


@ON_SQLITE
def test_what_many_new_jobs_have_noted_delays_neither_a_start_nor_an_end(gates: Gates) -> None:
    gates.limit(interval=60)
    gates.put(concurrency_key="k", unique_key="u", waiting_key="u")
    other = gates.one("mail", concurrency_key="k")
    waiting = gates.one("mail", concurrency_key="k")
    many = "WITH n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 20000)"
    execute(gates._raw, f"{many} INSERT INTO jobs (type, concurrency_key) SELECT 'tag', n FROM n")
    began, [claim] = time.time(), gates.claim()
    [first] = gates.claim(type_="mail")
    assert (claim.job_id, first.job_id) == (1, other)
    assert execute(gates._raw, "SELECT unique_key FROM jobs WHERE id = 1") == [(None,)]
    watch = Stopwatch()
    gates.settle(done(first, None))
    assert watch.seconds() < 0.3  # all of them would take a second
    assert gates.pending("mail") == [waiting]
    gates.sql("SELECT 1")
    [due] = execute(gates._raw, "SELECT scheduled_at FROM jobs WHERE type = 'tag' AND status = 'pending'")
    assert due[0] > began + 50


@pytest.mark.parametrize("key", ["NULL", "'k'"])
@ON_SQLITE
def test_thousands_that_another_program_cancels_delay_nobody(gates: Gates, key: str) -> None:
    gates.limit(max_running=1)
    many = "WITH n (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 5000)"
    gates.sql(f"{many} INSERT INTO jobs (type, concurrency_key) SELECT 'tag', {key} FROM n")
    execute(gates._raw, f"{SET} 'cancelled'")
    watch = Stopwatch()
    gates.tend()
    assert watch.seconds() < 3  # a fifth of a second; if each end reads all others, half a minute
    assert gates.pending() == []


@ON_SQLITE
def test_what_happens_right_before_a_move_is_seen_to(
    gates: Gates, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = chain(gates, 2)
    shut = MoveEnd.shut

    def shut_late(self: MoveEnd, *where: str) -> None:
        execute(gates._raw, f"{SET} 'done' WHERE id = {a}")
        shut(self, *where)

    monkeypatch.setattr(MoveEnd, "shut", shut_late)
    with closing(engine.move_end()) as end:
        end.shut(CLOSED_FOR, "postgresql://server/db")
    assert gates.pending() == [b]
