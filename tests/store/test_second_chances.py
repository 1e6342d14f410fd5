"""Failed jobs that go back to pending by themselves: which, and how often."""

from __future__ import annotations

from typing import Any

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import Failure, Settlement
from supervisor.maintenance.orders import PoolOrders
from supervisor.maintenance.prune_and_redrive import Redriver
from supervisor.store.base import Cursor, JobSelector, Redriven
from tests.store.kit import BROKEN, NOW, Desk

START = Cursor(0.0, 0)
TAG = JobSelector(("tag",), "gpu")


def fail(desk: Desk, *, at: float = NOW, **job: Any) -> int:
    """A job of type `tag` whose last attempt has failed then."""
    job_id = desk.put("tag", at - 1, **job)
    again(desk, job_id, at)
    return job_id


def again(desk: Desk, job_id: int, at: float) -> None:
    """It is run once more, to no avail."""
    (claim,) = desk.claims.settle_and_claim("w1", [], TAG, 1, 60.0, at).claims
    assert claim.job_id == job_id
    settlement = Settlement(job_id, claim.token, Status.FAILED, failure=Failure(BROKEN.kind, BROKEN.message))
    assert desk.claims.settle_and_claim("w1", [settlement], TAG, 0, 60.0, at).lost == []


def revive(desk: Desk, until: float, *, times: int = 2, after: Cursor = START, limit: int = 100) -> list[int]:
    return list(desk.maintenance.finished.redrive(TAG, times, after, until, limit, until).jobs)


def test_a_failed_job_that_has_rested_goes_back_with_its_counters_reset(desk: Desk) -> None:
    rested = fail(desk)
    fresh = fail(desk, at=NOW + 50)

    assert revive(desk, NOW + 10) == [rested]
    assert (desk.job(rested).status, desk.job(rested).attempts) == (Status.PENDING, 0)
    assert desk.job(fresh).status is Status.FAILED


def test_it_goes_back_so_many_times_and_no_more_unless_somebody_retries_it_by_hand(desk: Desk) -> None:
    job_id = fail(desk)
    for round_ in (1, 2):
        assert revive(desk, NOW + 100 * round_) == [job_id]
        again(desk, job_id, NOW + 100 * round_)
    assert revive(desk, NOW + 300) == []

    assert desk.operations.actions.retry([job_id], NOW + 300).changed == 1
    again(desk, job_id, NOW + 300)
    assert revive(desk, NOW + 400) == [job_id]


def test_what_another_pool_takes_or_what_was_quarantined_or_cancelled_stays(desk: Desk) -> None:
    wanted = fail(desk, requires="gpu")
    (elsewhere,) = desk.producer.enqueue([NewJob("mail", "{}", scheduled_at=NOW - 1)])
    (claim,) = desk.claims.settle_and_claim("w1", [], JobSelector(("mail",)), 1, 60.0, NOW).claims
    desk.claims.settle_and_claim("w1", [Settlement(elsewhere, claim.token, Status.FAILED)], TAG, 0, 60.0, NOW)
    poisoned = desk.put("tag")
    (claim,) = desk.claims.settle_and_claim("w1", [], TAG, 1, 60.0, NOW).claims
    desk.claims.settle_and_claim("w1", [Settlement(poisoned, claim.token, Status.QUARANTINED)], TAG, 0, 60.0, NOW)

    assert revive(desk, NOW + 10) == [wanted]


def test_a_walk_is_bounded_and_goes_on_where_it_was(desk: Desk) -> None:
    jobs = [fail(desk) for _ in range(5)]  # all of the same moment

    walk = [Redriven([], START)]
    for _ in range(4):
        walk.append(desk.maintenance.finished.redrive(TAG, 1, walk[-1].reached, NOW, 2, NOW))

    assert [(part.jobs, part.more) for part in walk[1:]] == [
        (jobs[:2], True),
        (jobs[2:4], True),
        (jobs[4:], False),
        ([], False),
    ]
    assert walk[-1].reached == walk[-2].reached


def test_one_whose_unique_key_an_unfinished_job_has_is_retried_when_that_has_ended(desk: Desk) -> None:
    redriver = Redriver(desk.maintenance.finished, [PoolOrders(TAG, 0, 60.0, 5.0, 10.0, 1)])
    old, other = fail(desk, unique_key="cat"), fail(desk)
    late = fail(desk, unique_key="cat", at=NOW + 1)
    unfinished = desk.put("tag", unique_key="cat", at=NOW + 1e6)

    assert redriver.run(NOW + 20).done == 1
    fresh = fail(desk, at=NOW + 20, priority=1)
    assert redriver.run(NOW + 30).done == 1
    assert {desk.job(job).status for job in (old, late)} == {Status.FAILED}
    assert {desk.job(job).status for job in (other, fresh)} == {Status.PENDING}

    desk.operations.actions.cancel(unfinished, NOW + 30)
    assert redriver.run(NOW + 40).done == 1
    assert (desk.status(old), desk.status(late)) == (Status.PENDING, Status.FAILED)
    desk.operations.actions.cancel(old, NOW + 40)
    assert redriver.run(NOW + 50).done == 1
    assert redriver.run(NOW + 60).done == 0
    assert desk.status(late) is Status.PENDING


def test_a_clock_that_is_put_back_leaves_nobody_waiting(desk: Desk) -> None:
    reviver = Redriver(desk.maintenance.finished, [PoolOrders(TAG, 0, 60.0, 5.0, 60.0, 5)])
    fail(desk)
    assert reviver.run(NOW + 60).done == 1
    fail(desk, at=NOW - 7200)

    assert reviver.run(NOW - 7200 + 60).done == 1
