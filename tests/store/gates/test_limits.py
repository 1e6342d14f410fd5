"""Limits by key and by type: what may run, in which order, and what gives its place back."""

from __future__ import annotations

import time

import pytest

from supervisor.domain.job import Status
from supervisor.domain.limits import Limits
from supervisor.domain.settlement import done, failed, released
from tests.store.gates.conftest import Gates
from tests.store.kit import BROKEN, POLICY


@pytest.mark.parametrize("most", [1, 3])
def test_a_key_has_so_many_and_the_next_one_when_one_ends(gates: Gates, most: int) -> None:
    if most > 1:
        gates.limit(per_key=most)
    jobs = gates.put(5, concurrency_key="a")
    other = gates.one(concurrency_key="b")
    assert gates.pending() == [*jobs[:most], other]
    assert [gates.hold(job) for job in jobs[most:]] == ["key"] * (5 - most)
    gates.work(jobs[0])
    assert gates.pending() == [*jobs[1 : most + 1], other]


def test_a_key_without_a_configured_limit_has_one(gates: Gates) -> None:
    first, second = gates.put(2, concurrency_key="a")
    assert gates.pending() == [first]
    assert gates.one() in gates.pending()  # of the same type, without a key
    assert gates.one("mail", concurrency_key="a") in gates.pending("mail")  # the same key of another type
    gates.work(first, Status.FAILED)
    assert second in gates.pending()


def test_the_order_is_that_of_priority_and_then_of_the_time(gates: Gates) -> None:
    now = time.time()
    first = gates.one(concurrency_key="a")
    late, early = (gates.one(concurrency_key="a", scheduled_at=now - ago) for ago in (10, 20))
    urgent = gates.one(concurrency_key="a", priority=5)
    order = []
    while pending := gates.pending():
        order += pending
        gates.work(pending[0])
    assert order == [first, urgent, early, late]


def test_a_type_has_so_many_wherever_they_run(gates: Gates) -> None:
    gates.limit(max_running=3)
    jobs = gates.put(10)
    assert gates.pending() == jobs[:3]
    claims = gates.claim(10)
    assert len(claims) == 3
    assert gates.pending() == []
    gates.settle(*(done(claim, None) for claim in claims[:2]))
    assert gates.pending() == jobs[3:5]


def test_both_limits_hold_at_once(gates: Gates) -> None:
    gates.limit(max_running=2, per_key=1)
    a = gates.put(3, concurrency_key="a")
    b, c = gates.one(concurrency_key="b"), gates.one(concurrency_key="c")
    assert gates.pending() == [a[0], b]
    assert (gates.hold(a[1]), gates.hold(c)) == ("key", "type")
    gates.work(a[0])
    assert gates.pending() == [a[1], b]  # before c, which came later
    assert (gates.hold(a[2]), gates.hold(c)) == ("key", "type")


def test_a_later_job_is_held_until_its_time_and_takes_no_place(gates: Gates) -> None:
    later = gates.one(concurrency_key="a", scheduled_at=time.time() + 1.0)
    now = gates.one(concurrency_key="a")
    assert gates.hold(later) == "due"
    assert gates.pending() == [now]
    gates.work(now)
    assert gates.pending() == []
    time.sleep(1.05)
    gates.tend()
    assert gates.pending() == [later]


def test_a_retry_with_delay_gives_its_place_back(gates: Gates) -> None:
    first, second = gates.put(2, concurrency_key="a")
    gates.work(first, Status.PENDING)
    assert gates.hold(first) == "due"
    assert gates.pending() == [second]


def test_a_released_job_passes_the_gates_again_at_its_own_place(gates: Gates) -> None:
    first, second = gates.put(2, concurrency_key="a")
    [claim] = gates.claim()
    gates.settle(released(claim))
    assert gates.pending() == [first]
    assert gates.hold(second) == "key"


def test_skip_cancels_the_newcomer(gates: Gates) -> None:
    gates.limit(on_conflict="skip")
    first, second = gates.one(concurrency_key="a"), gates.one(concurrency_key="a")
    other = gates.one(concurrency_key="b")
    assert gates.pending() == [first, other]
    assert "skipped" in (gates.desk.job(second).last_error or "")
    gates.work(first, Status.PENDING)  # it waits for its next attempt
    third = gates.one(concurrency_key="a")
    assert gates.status(second, third) == ["cancelled", "cancelled"]
    assert gates.hold(first) == "due"


def test_cancel_running_lets_the_newest_win(gates: Gates) -> None:
    gates.limit(on_conflict="cancel_running")
    first = gates.one(concurrency_key="a")
    [claim] = gates.claim()
    second, third = gates.one(concurrency_key="a"), gates.one(concurrency_key="a")
    assert gates.status(first, second) == ["running", "cancelled"]
    assert gates.desk.job(first).cancel_requested_at is not None
    assert gates.desk.job(second).last_error == f"cancelled: job {third} with its concurrency_key came later"
    assert gates.hold(third) == "key"
    gates.settle(failed(claim, BROKEN, POLICY, chance=0.5))
    assert gates.status(first) == ["cancelled"]
    assert gates.pending() == [third]


def test_a_limit_is_raised_and_lowered(gates: Gates) -> None:
    gates.limit(max_running=1)
    jobs = gates.put(6)
    gates.limit(max_running=4)
    assert gates.pending() == jobs[:4]
    gates.limit(max_running=2)
    assert gates.pending() == jobs[:2]
    gates.desk.maintenance.gates.choose("tag", None, time.time())
    gates.tend()
    assert gates.pending() == jobs


def test_a_limit_holds_for_jobs_that_were_there_before(gates: Gates) -> None:
    jobs = gates.put(5)
    assert gates.pending() == jobs
    claim = gates.claim()[0]
    gates.limit(max_running=2)
    gates.tend()
    assert gates.pending() == jobs[1:2]
    gates.settle(done(claim, None))
    assert gates.pending() == jobs[1:3]


@pytest.mark.parametrize("how", ["foreign program", "cancelled", "deleted"])
def test_room_that_others_make_is_used(gates: Gates, how: str) -> None:
    first, second = gates.put(2, concurrency_key="a")
    if how == "foreign program":
        gates.sql(f"UPDATE jobs SET status = 'running' WHERE id = {first}")
        assert gates.pending() == []
        gates.sql(f"UPDATE jobs SET status = 'done' WHERE id = {first}")
    elif how == "cancelled":
        gates.desk.operations.actions.cancel(first, time.time())
        gates.tend()
    else:
        gates.sql(f"DELETE FROM jobs WHERE id = {first}")
        gates.desk.maintenance.gates.sweep(time.time())
    assert gates.pending() == [second]


def test_a_job_retried_by_hand_passes_the_gates_again(gates: Gates) -> None:
    first, second = gates.put(2, concurrency_key="a")
    gates.work(first, Status.FAILED)
    gates.desk.operations.actions.retry([first], time.time())
    gates.tend()
    assert gates.pending() == [second]
    assert gates.hold(first) == "key"


def test_jobs_without_gates_are_as_they_were(gates: Gates) -> None:
    gates.limit("mail", max_running=1, interval=1.0)
    job = gates.one()
    assert gates.sql(f"SELECT hold, turn, claim_token FROM jobs WHERE id = {job}") == [(None, None, 0)]
    gates.work(job, Status.PENDING)
    assert gates.sql(f"SELECT status, hold FROM jobs WHERE id = {job}") == [("pending", None)]


def test_many_jobs_pass_a_new_limit_in_parts(gates: Gates) -> None:
    jobs, store = gates.put(1200), gates.desk.maintenance.gates
    assert store.configure({"tag": Limits(max_running=3)}, ["tag"], time.time()) == ["tag"]
    parts = 1
    while store.sweep(time.time(), bound=0.0)[1]:
        parts += 1
    assert parts > 2
    assert gates.pending() == jobs[:3]
    assert store.sweep(time.time()) == (0, False)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("columns", [{}, {"batch": 1}])
def test_jobs_take_turns_if_that_is_configured_when_they_wait_already(
    gates: Gates, known: bool, columns: dict[str, int]
) -> None:
    if known:
        gates.limit(max_running=1)
    bob, alice = gates.put(9, fair_key="bob", **columns), gates.put(3, fair_key="alice", **columns)
    gates.limit(max_running=1, fair=True)
    order = []
    for _ in range(8):
        [job] = gates.pending()
        gates.work(job)
        order.append("bob" if job in bob else "alice")
    assert order.count("alice") == len(alice)


def test_jobs_take_turns_by_their_fair_key(gates: Gates) -> None:
    gates.limit(max_running=10, fair=True)
    bob = gates.put(1000, fair_key="bob")
    alice = gates.put(10, fair_key="alice")
    admitted = gates.pending()
    assert admitted == bob[:10]
    for _ in range(20):
        gates.work(gates.pending()[0])
        admitted += [job for job in gates.pending() if job not in admitted]
    assert set(alice) < set(admitted[10:])


def test_who_comes_late_is_owed_nothing(gates: Gates) -> None:
    gates.limit(max_running=1, fair=True)
    for _ in range(20):
        gates.work(gates.one(fair_key="bob"))
    alice, bob = gates.put(3, fair_key="alice"), gates.put(3, fair_key="bob")
    order = []
    while pending := gates.pending():
        order += pending
        gates.work(pending[0])
    for theirs, others in ((alice, bob), (bob, alice)):
        assert all(order.index(later) > order.index(job) for job, later in zip(theirs, others[2:], strict=False))


def test_a_waiting_job_is_boosted_by_its_age(gates: Gates) -> None:
    gates.limit(max_running=1, age_boost=10.0)
    gates.one()
    old, urgent = gates.one(scheduled_at=time.time() - 60), gates.one(priority=5)
    assert (gates.hold(old), gates.hold(urgent)) == ("type", "type")
    gates.work(gates.pending()[0])
    assert gates.pending() == [old]
