"""Keys that count until the start of a job, or for a time after its success, and what a duplicate does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from supervisor.domain.enqueueing import new_job
from supervisor.domain.errors import DuplicateJob
from supervisor.domain.job import Status
from supervisor.domain.settlement import cancelled, crashed, done, failed, released
from supervisor.store.base import Filter
from tests.store.gates.conftest import Gates
from tests.store.kit import BROKEN, POLICY, python


def put(gates: Gates, payload: object = None, *, unique: str | None = "pending", **options: Any) -> tuple[int, bool]:
    job = new_job("tag", payload, **{"unique_key": "k", "unique": unique} | options)
    answer = gates.desk.producer.put(job)
    gates.tend()
    return answer


def test_a_key_that_counts_until_the_start_lets_one_wait_while_one_runs(gates: Gates) -> None:
    first, _ = put(gates)
    assert put(gates) == (first, False)
    [claim] = gates.claim(2)
    second, new = put(gates)
    assert new
    assert put(gates) == (second, False)
    assert gates.desk.operations.jobs.ids(Filter(unique_key="k")) == [first, second]
    gates.settle(done(claim, None))
    assert put(gates) == (second, False)
    gates.work(second)
    assert gates.status(first, second) == ["done", "done"]
    assert [gates.desk.job(job).unique_key for job in (first, second)] == ["k", "k"]


ENDS: dict[str, Callable[[Any], Any]] = {
    "retry": lambda claim: failed(claim, BROKEN, POLICY, chance=0.5),
    "failure": lambda claim: failed(claim, BROKEN, POLICY, chance=0.5, permanent=True),
    "shutdown": released,
    "crash": lambda claim: crashed(claim, BROKEN, POLICY, 3, chance=0.5),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_would_run_again_or_has_failed_is_superseded_by_one_that_waits(gates: Gates, end: str) -> None:
    first, _ = put(gates)
    [claim] = gates.claim()
    second, _ = put(gates)
    gates.settle(ENDS[end](claim))
    gates.tend()
    assert gates.status(first, second) == ["cancelled", "pending"]
    job = gates.desk.job(first)
    assert (job.last_error, job.locked_by) == (f"superseded by job {second}", None)
    assert job.completed_at is not None
    assert gates.desk.operations.actions.retry([first], time.time()).duplicates == {first: second}
    gates.work(second)
    assert gates.desk.operations.actions.retry([first], time.time()).changed == 1
    gates.tend()
    gates.work(first)


@pytest.mark.parametrize("end", ["retry", "shutdown", "crash"])
def test_without_another_one_it_has_its_key_again(gates: Gates, end: str) -> None:
    first, _ = put(gates)
    [claim] = gates.claim()
    gates.settle(ENDS[end](claim))
    gates.tend()
    assert put(gates) == (first, False)
    assert gates.status(first)[0] in ("pending", "held")


def test_a_failure_that_nothing_supersedes_keeps_its_key_for_a_retry(gates: Gates) -> None:
    first, _ = put(gates)
    gates.work(first, Status.FAILED)
    assert gates.status(first) == ["failed"]
    second, new = put(gates)
    assert new
    assert gates.desk.operations.actions.retry([first], time.time()).duplicates == {first: second}


def test_what_is_cancelled_while_it_runs_is_not_superseded(gates: Gates) -> None:
    first, _ = put(gates)
    [claim] = gates.claim()
    put(gates)
    gates.settle(cancelled(claim))
    assert gates.status(first) == ["cancelled"]
    assert gates.desk.job(first).last_error == "cancelled while running"


def test_it_holds_for_programs_that_know_only_sql(gates: Gates) -> None:
    first = gates.one(unique_key="k", waiting_key="k")
    gates.sql(f"UPDATE jobs SET status = 'running' WHERE id = {first}")
    second = gates.one(unique_key="k", waiting_key="k")
    gates.sql(f"UPDATE jobs SET status = 'pending' WHERE id = {first}")
    assert gates.status(first, second) == ["cancelled", "pending"]
    assert gates.desk.job(first).last_error == f"superseded by job {second}"
    gates.sql(f"UPDATE jobs SET status = 'running' WHERE id = {second}")
    gates.sql(f"UPDATE jobs SET status = 'done' WHERE id = {second}")
    assert gates.status(second) == ["done"]


def test_what_is_superseded_leaves_its_gate_and_its_batch(gates: Gates) -> None:
    gates.sql("INSERT INTO job_batches (id, type, closed) VALUES (5, 'sum', 1)")
    first, _ = put(gates, concurrency_key="c", batch=5)
    [claim] = gates.claim()
    second, _ = put(gates, concurrency_key="c")
    assert gates.hold(second) == "key"
    gates.settle(ENDS["retry"](claim))
    assert gates.status(first, second) == ["cancelled", "pending"]
    assert len(gates.pending("sum")) == 1


def test_a_key_counts_for_a_time_after_a_success(gates: Gates) -> None:
    options: dict[str, Any] = {"unique": None, "unique_for": "1h"}
    first, _ = put(gates, **options)
    assert put(gates, **options) == (first, False)
    gates.work(first)
    assert put(gates, **options) == (first, False)
    other, new = put(gates, unique=None)  # looks only at what is unfinished
    assert new
    gates.work(other)
    gates.sql(f"UPDATE jobs SET completed_at = completed_at - 3601 WHERE id = {first}")
    second, new = put(gates, **options)
    assert new
    gates.work(second, Status.FAILED)
    third, new = put(gates, **options)  # only a success counts
    assert new
    assert len({first, other, second, third}) == 4


def test_a_job_is_kept_as_long_as_its_key_counts(gates: Gates) -> None:
    with closing(gates.desk.engine.claims(keep_done=False)) as gates.desk.claims:
        kept, _ = put(gates, unique=None, unique_for="1h")
        gates.work(kept)
    prune = gates.desk.maintenance.finished.prune
    assert prune(0, 100, time.time() + 9, time.time() + 9)[0] == 0
    assert put(gates, unique=None, unique_for="1h") == (kept, False)
    gates.sql(f"UPDATE jobs SET completed_at = completed_at - 3601 WHERE id = {kept}")
    assert prune(0, 100, time.time() + 9, time.time() + 9)[0] == 1


@pytest.mark.parametrize("unique", ["pending", "unfinished"])
def test_a_duplicate_may_replace_what_the_one_that_waits_is_to_do(gates: Gates, unique: str) -> None:
    options: dict[str, Any] = {"unique": unique, "on_duplicate": "replace"}
    first, _ = put(gates, {"n": 1}, delay="1h", **options)
    assert gates.pending() in ([], [first])
    assert put(gates, {"n": 2}, priority=5, **options) == (first, False)
    job = gates.desk.job(first)
    assert (job.payload, job.priority, gates.pending()) == ({"n": 2}, 5, [first])
    assert job.scheduled_at == pytest.approx(time.time(), abs=5)
    put(gates, {"n": 3}, delay="1h", **options)
    assert gates.claim() == []
    put(gates, {"n": 4}, at=time.time() - 9, **options)
    [claim] = gates.claim()
    assert claim.payload == '{"n":4}'
    answer = put(gates, {"n": 5}, **options)
    assert gates.desk.job(first).payload == {"n": 4}
    assert answer[1] is (unique == "pending")


def test_a_replaced_job_keeps_its_place(gates: Gates) -> None:
    gates.limit(max_running=2)
    busy, first = gates.one(), put(gates, {"n": 1})[0]
    waiting, _ = put(gates, {"n": 1}, unique_key="l", at=time.time() - 9)
    later = gates.one()
    for key in ("k", "l"):
        put(gates, {"n": 2}, unique_key=key, on_duplicate="replace")
    assert gates.pending() == [busy, first]
    gates.work(busy)
    gates.work(first)
    assert gates.pending() == [waiting, later]
    assert [gates.desk.job(job).payload for job in (first, waiting)] == [{"n": 2}] * 2


def test_what_is_put_off_leaves_its_room_to_others(gates: Gates) -> None:
    gates.limit(max_running=1)
    first, _ = put(gates, {"n": 1})
    other = gates.one()
    assert (gates.pending(), gates.hold(other)) == ([first], "type")
    put(gates, {"n": 2}, delay="1h", on_duplicate="replace")
    assert (gates.pending(), gates.hold(first)) == ([other], "due")


def test_a_job_after_others_goes_on_waiting_when_it_is_replaced(gates: Gates) -> None:
    before = gates.one()
    [job] = gates.desk.producer.enqueue([new_job("tag", {"n": 1}, after=[before], unique_key="k", unique="pending")])
    put(gates, {"n": 2}, on_duplicate="replace")
    assert gates.hold(job) == "after"
    gates.work(before)
    assert gates.pending() == [job]
    assert gates.desk.job(job).payload == {"n": 2}


def test_a_duplicate_may_be_an_error(gates: Gates) -> None:
    first, _ = put(gates)
    with pytest.raises(DuplicateJob, match=f"^job {first} has this unique key") as raised:
        put(gates, on_duplicate="error")
    assert (raised.value.job_id, raised.value.duplicate_of) == (first, first)
    jobs = [new_job("tag"), new_job("tag", unique_key="k", on_duplicate="error"), new_job("tag", unique_key="l")]
    one, error, two = gates.desk.producer.put_each(jobs)
    assert isinstance(error, DuplicateJob)
    assert not isinstance(one, Exception)
    assert not isinstance(two, Exception)
    assert gates.sql("SELECT count(*) FROM jobs") == [(3,)]
    limited = new_job("tag", unique_key="k", on_duplicate="error")._replace(max_waiting=1)
    with pytest.raises(DuplicateJob):
        gates.desk.producer.put(limited)


def test_a_run_that_enqueues_such_a_duplicate_fails(gates: Gates) -> None:
    twin, _ = put(gates)
    parent = gates.one("sum")
    [claim] = gates.claim(type_="sum")
    child = new_job("tag", unique_key="k", on_duplicate="error")
    gates.settle(done(claim, None, children=(new_job("tag"), child)))
    assert gates.status(parent, twin) == ["failed", "pending"]
    assert f"job {twin} has this unique key" in str(gates.desk.job(parent).last_error)
    assert gates.pending() == [twin]


# Puts many keys, tells which were new, and lets each new one run at once and be done.
PUTTER = """
import sys, time
from supervisor.domain.enqueueing import new_job
from supervisor.domain.settlement import done
from supervisor.engine import open_engine
from supervisor.store.base import JobSelector

url, option, owner = sys.argv[1:]
engine = open_engine(url)
producer, claims = engine.producer(), engine.claims()
print("ready", flush=True)
sys.stdin.readline()
new = []
for number in range(500):
    unique = {"unique": "pending"} if option == "pending" else {"unique_for": "1h"}
    if producer.put(new_job("tag", unique_key=str(number), **unique))[1]:
        new.append(number)
    if option == "after" and number % 5 == 0:
        begun = claims.settle_and_claim(owner, [], JobSelector(("tag",)), 9, 60.0, time.time()).claims
        ends = [done(claim, None) for claim in begun]
        claims.settle_and_claim(owner, ends, JobSelector(()), 0, 60.0, time.time())
print(*new)
"""


@pytest.mark.parametrize("option", ["pending", "after"])
def test_of_two_processes_that_put_a_key_at_once_one_is_told_that_it_is_new(gates: Gates, option: str) -> None:
    both = [
        subprocess.Popen(
            python("-c", PUTTER, gates.url, option, f"w{number}"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    for one in both:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n"
    for one in both:
        assert one.stdin is not None
        one.stdin.write("\n")
        one.stdin.flush()
    told = [number for one in both for number in one.communicate(timeout=60)[0].split()]
    assert sorted(told, key=int) == [str(number) for number in range(500)]
    assert gates.sql("SELECT count(*) FROM jobs") == [(500,)]
