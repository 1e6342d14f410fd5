"""The reclaimer on a real store, with a monotonic clock of our own: who loses a claim, and who does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from supervisor.domain.duty import Result, moved
from supervisor.domain.job import Status
from supervisor.domain.recovery import JobPolicy, observation_time, renewal_interval
from supervisor.domain.settlement import done, released
from supervisor.maintenance.locks import Reclaimer
from tests.store.kit import LOCK, NOW, Desk, execute, worker_record

LATER = NOW + 7200.0  # the wall clock jumps by two hours


@dataclass
class Clock:
    at: float = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def look_for(reclaimer: Reclaimer, clock: Clock, seconds: float, now: float = LATER) -> Result:
    """Look as often as the reclaimer wants to, for so long. Returns what came of the last look."""
    end = clock.at + seconds
    result = reclaimer.run(now)
    while clock.at < end and not result.done:
        clock.at += reclaimer.every
        result = reclaimer.run(now)
    return result


def test_a_lock_that_nobody_renews_is_taken_after_patience_and_not_before(desk: Desk, clock: Clock) -> None:
    job_id = desk.put()
    claim = desk.one()
    reclaimer = Reclaimer(desk.maintenance.locks, desk.maintenance.registry, LOCK, clock)

    assert look_for(reclaimer, clock, observation_time(LOCK) * 0.75) == moved(0)
    assert look_for(reclaimer, clock, observation_time(LOCK)) == moved(1)

    assert (desk.status(job_id), desk.job(job_id).crashes) == (Status.PENDING, 1)
    assert desk.settle(done(claim, None)) == [job_id]


def test_a_supervisor_takes_no_lock_of_its_own_living_worker_that_it_has_failed_to_renew(
    desk: Desk, clock: Clock
) -> None:
    job_id = desk.put()
    desk.one()
    living = {"w1"}
    reclaimer = Reclaimer(desk.maintenance.locks, desk.maintenance.registry, LOCK, clock, renewed=lambda: living)

    assert look_for(reclaimer, clock, observation_time(LOCK) * 3) == moved(0)
    living.clear()  # stopped or stuck, and so no longer renewed
    assert look_for(reclaimer, clock, observation_time(LOCK) * 2) == moved(1)

    assert (desk.status(job_id), desk.job(job_id).crashes) == (Status.PENDING, 1)


def test_a_jump_of_the_wall_clock_takes_nothing_from_an_owner_that_renews(desk: Desk, clock: Clock) -> None:
    job_id = desk.put()
    claim = desk.one()
    reclaimer = Reclaimer(desk.maintenance.locks, desk.maintenance.registry, LOCK, clock)

    for hours in range(1, 10):
        now = NOW + hours * 3600.0
        assert look_for(reclaimer, clock, renewal_interval(LOCK), now) == moved(0)
        desk.maintenance.locks.renew(["w1"], now + LOCK * 2 / 3, now + LOCK)
        assert look_for(reclaimer, clock, renewal_interval(LOCK), now) == moved(0)

    assert desk.settle(done(claim, None)) == []
    assert desk.job(job_id).crashes == 0


def test_a_peer_with_short_locks_is_patient_with_an_owner_that_renews_seldom(desk: Desk, clock: Clock) -> None:
    """Two supervisors with configurations of their own; the wall clock jumps by two hours."""
    long, short = 60.0, 1.0
    desk.claims.register(worker_record("w1", policy=JobPolicy(lock_time=long).encode()))
    job_id = desk.put()
    claim = desk.one(lock_time=long)
    reclaimer = Reclaimer(desk.maintenance.locks, desk.maintenance.registry, short, clock)

    assert look_for(reclaimer, clock, renewal_interval(long)) == moved(0)
    desk.maintenance.locks.renew(["w1"], LATER + long * 2 / 3, LATER + long)

    assert look_for(reclaimer, clock, observation_time(long)) == moved(0)
    assert desk.settle(done(claim, None)) == []
    assert desk.job(job_id).crashes == 0


@pytest.mark.parametrize("renewals", [1.5, 2.5, 5.0, 50.0])
def test_being_stopped_together_with_the_owner_takes_nothing(desk: Desk, clock: Clock, renewals: float) -> None:
    """The whole machine is frozen just after the jump: nobody could renew, and the monotonic clock went on."""
    desk.put()
    claim = desk.one()
    reclaimer = Reclaimer(desk.maintenance.locks, desk.maintenance.registry, LOCK, clock)
    assert reclaimer.run(LATER) == moved(0)

    clock.at += renewals * renewal_interval(LOCK)
    assert reclaimer.run(LATER) == moved(0)
    desk.maintenance.locks.renew(["w1"], LATER + LOCK * 2 / 3, LATER + LOCK)

    assert look_for(reclaimer, clock, observation_time(LOCK)) == moved(0)
    assert desk.settle(done(claim, None)) == []


def test_a_foreign_claim_is_taken_after_our_own_patience(desk: Desk, clock: Clock) -> None:
    """Nobody renews it, so there are no renewals to wait for."""
    desk.put()
    desk.one(owner="foreign")
    reclaimer = Reclaimer(desk.maintenance.locks, desk.maintenance.registry, 1.0, clock)

    assert look_for(reclaimer, clock, observation_time(LOCK)) == moved(1)


@pytest.mark.parametrize("value", ["'infinity'", "'NaN'", "-1e300"])
@pytest.mark.parametrize("column", ["lock_expires_at", "locked_at"])
def test_a_claim_whose_times_are_none_is_reclaimed(desk: Desk, column: str, value: str) -> None:
    """Any program may write them."""
    if desk.engine.url.startswith("sqlite:"):
        value = value.replace("'infinity'", "9e999").replace("'NaN'", "9e999 - 9e999")
    job = desk.put()
    execute(desk.engine.url, f"UPDATE jobs SET status = 'running' WHERE id = {job}")
    execute(desk.engine.url, f"UPDATE jobs SET lock_expires_at = {NOW - 1} WHERE id = {job}")
    execute(desk.engine.url, f"UPDATE jobs SET {column} = {value} WHERE id = {job}")
    locks = desk.maintenance.locks
    found = locks.expired(NOW, 10)
    assert found == locks.expired(NOW, 10)  # NaN would differ from itself
    assert locks.reclaim(found[0], lambda claim, owner: released(claim), NOW)
    assert desk.status(job) is Status.PENDING
