"""Whatever another program writes counts at the gates, and nothing waits for itself."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from supervisor.domain.job import Status
from tests.store.gates.conftest import Gates, execute
from tests.store.gates.test_after import after

SET = "UPDATE jobs SET status ="
KEYED = pytest.mark.parametrize("columns", [{}, {"concurrency_key": "k"}])


@KEYED
@pytest.mark.parametrize("end", [SET + " 'done'", "DELETE FROM jobs", SET + " 'failed', claim_token = claim_token + 1"])
def test_a_row_that_is_inserted_as_running_has_its_place(gates: Gates, columns: dict[str, str], end: str) -> None:
    gates.limit(max_running=None if columns else 1)
    runs, waits = gates.one(status="running", **columns), gates.one(**columns)
    assert (gates.status(runs), gates.hold(waits)) == (["running"], "key" if columns else "type")
    gates.sql(f"{end} WHERE id = {runs}")
    assert gates.pending() == [waits]


def test_a_row_that_is_inserted_as_running_counts_for_the_rate(gates: Gates) -> None:
    gates.limit(interval=60.0)
    gates.one(status="running")
    [(due,)] = execute(gates._raw, f"SELECT scheduled_at FROM jobs WHERE id = {gates.one()}")
    assert due > time.time() + 50
    plain = gates.one("plain", status="running")
    assert execute(gates._raw, f"SELECT hold FROM jobs WHERE id = {plain}") == [(None,)]


@pytest.mark.parametrize("change", ["type = 'mail'", "type = 'mail', concurrency_key = NULL", "concurrency_key = 'l'"])
@pytest.mark.parametrize("passed", [True, False])
def test_with_another_type_or_key_a_job_passes_the_gates_there(gates: Gates, change: str, *, passed: bool) -> None:
    gates.limit("mail", max_running=1)
    type_, held = ("mail", "type") if "mail" in change else ("tag", "key")
    there = gates.one(type_, concurrency_key="l")
    jobs = gates.put(3, concurrency_key="k")
    changed, first = jobs[not passed], jobs[passed]
    gates.sql(f"UPDATE jobs SET {change} WHERE id = {changed}")
    assert (gates.hold(changed), gates.hold(jobs[2])) == (held, "key")
    assert gates.pending() == ([there] if type_ == "tag" else []) + [first]
    gates.work(there)
    assert gates.hold(changed) is None


@pytest.mark.parametrize("change", ["type = 'mail'", "concurrency_key = 'l'"])
def test_one_without_gates_passes_those_that_it_gets(gates: Gates, change: str) -> None:
    gates.limit("mail", max_running=1)
    gates.one("mail")
    gates.one(concurrency_key="l")
    job = gates.one()
    gates.sql(f"UPDATE jobs SET {change} WHERE id = {job}")
    assert gates.hold(job) == ("type" if "mail" in change else "key")
    gates.sql(f"UPDATE jobs SET type = 'plain', concurrency_key = NULL WHERE id = {job}")
    assert gates.pending("plain") == [job]


def test_what_runs_or_waits_for_others_stays_where_it_is(gates: Gates) -> None:
    first, second = gates.put(2, concurrency_key="k")
    last = after(gates, second)
    gates.claim()
    gates.sql(f"UPDATE jobs SET concurrency_key = 'l' WHERE id IN ({first}, {last})")
    other = gates.one(concurrency_key="l")
    assert (gates.pending(), gates.hold(other), gates.hold(last)) == ([second], "key", "after")
    gates.work(second)
    assert gates.hold(last) == "key"


@pytest.mark.parametrize("limits", [{}, {"max_running": 1}])
def test_a_start_by_sql_of_what_has_ended_changes_nothing(gates: Gates, limits: dict[str, int]) -> None:
    gates.limit(**limits)
    job = gates.one()
    gates.work(job)
    gates.sql(f"{SET} 'running' WHERE id = {job}")
    assert gates.status(job) == ["done"]
    gates.sql(f"{SET} 'pending' WHERE id = {job}")
    assert gates.pending() == [job]


@KEYED
def test_one_that_gets_another_before_it_leaves_its_place_at_once(gates: Gates, columns: dict[str, str]) -> None:
    gates.limit("sum", max_running=None if columns else 1)
    first, second = gates.put(2, "sum", **columns)
    gates.sql(f"INSERT INTO job_after (after_id, job_id) VALUES ({gates.one()}, {first})")
    assert (gates.hold(first), gates.pending("sum")) == ("after", [second])


@pytest.mark.parametrize("gate", ["key", "type", "key before type"])
def test_what_follows_a_retried_one_leaves_its_place_at_once(gates: Gates, gate: str) -> None:
    columns = {"concurrency_key": "k"} if "key" in gate else {}
    gates.limit("sum", max_running=1 if "type" in gate else None)
    if next_gate := "type" if "before" in gate else None:
        gates.one("sum")
    a = gates.one()
    b = after(gates, a, type_="sum", **columns)
    gates.work(a, Status.FAILED)
    gates.desk.operations.actions.retry([b], time.time())  # by hand, although the one before it has failed
    gates.tend()
    waits = gates.one("sum", **columns)
    assert (gates.hold(b), gates.hold(waits)) == (next_gate, gate.split()[0])
    gates.desk.operations.actions.retry([a], time.time())
    gates.tend()
    assert (gates.hold(b), gates.hold(waits)) == ("after", next_gate)


@pytest.mark.parametrize("length", [1, 2, 50])
def test_a_circle_is_refused(gates: Gates, length: int) -> None:
    jobs = [gates.one(), *(gates.one(status="held", hold="after") for _ in range(length - 1))]
    for before, job in pairwise(jobs):
        gates.sql(f"INSERT INTO job_after (after_id, job_id) VALUES ({before}, {job})")
    with pytest.raises(Exception, match="would wait for itself"):
        execute(gates._raw, f"INSERT INTO job_after (after_id, job_id) VALUES ({jobs[-1]}, {jobs[0]})")
    for job in jobs:
        assert gates.pending() == [job]
        gates.work(job)
