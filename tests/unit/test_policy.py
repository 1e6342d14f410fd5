"""What a dead worker's claims become, by the policy kept with it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.job import Claim, Status
from supervisor.domain.recovery import Charge, JobPolicy, settle_expired, settle_held, settle_interrupted
from supervisor.domain.settlement import Failure, FollowUps, RetryPolicy, done

HELD = [Claim(n, 10 + n, "tag", "{}", 1, None, 0) for n in (1, 2, 3)]
BROKEN = Failure("crash", "killed by SIGKILL")
POLICY = JobPolicy(RetryPolicy(max_attempts=3, jitter=0), max_crashes=2)


@given(
    st.integers(1, 99),
    st.sampled_from(["exponential", "linear", "fixed"]),
    st.integers(1, 99),
    st.sampled_from(["pending", "failed"]),
)
def test_a_policy_survives_its_row(attempts: int, backoff: Any, crashes: int, recover: Any) -> None:
    policy = JobPolicy(RetryPolicy(attempts, backoff), crashes, recover)
    assert JobPolicy.decode(policy.encode()) == policy


def test_what_is_for_exceptions_is_not_kept_for_deaths() -> None:
    """Releases that do not know it would otherwise take the default policy."""
    after = RetryPolicy(max_attempts=2, on={"KeyError": {"base": 1.0}})
    text = JobPolicy(after, retry_by_type={"a": after}).encode()
    assert '"on"' not in text
    assert JobPolicy.decode(text).retry_of("a") == RetryPolicy(max_attempts=2)


def test_a_success_that_nothing_follows_stays_a_plain_one() -> None:
    on_failed, on_done = (JobPolicy(follow_ups={"tag": follow}) for follow in (FollowUps(None, "a"), FollowUps("a")))
    assert on_failed.followed(done(HELD[0], None)).simple
    assert not on_done.followed(done(HELD[0], None)).simple


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"retry": 5}', '{"retry": {"nope": 1}}', "null", "\x00"])
def test_anything_unreadable_is_the_default_policy(text: str) -> None:
    assert JobPolicy.decode(text) == JobPolicy()


@pytest.mark.parametrize(
    ("charge", "status", "attempts", "crashes"),
    [
        ("crash", Status.PENDING, -1, 1),
        ("attempt", Status.PENDING, 0, 0),
        ("cancel", Status.CANCELLED, 0, 0),
        ("nothing", Status.PENDING, -1, 0),
    ],
)
def test_only_the_job_that_had_begun_is_charged(charge: str, status: Status, attempts: int, crashes: int) -> None:
    settled = settle_held(HELD, (2, 12), charge, BROKEN, POLICY, 0.5)  # type: ignore[arg-type]

    assert [s.job_id for s in settled] == [1, 2, 3]
    assert (settled[1].status, settled[1].attempts, settled[1].crashes) == (status, attempts, crashes)
    for other in (settled[0], settled[2]):
        assert (other.status, other.attempts, other.crashes) == (Status.PENDING, -1, 0)


@pytest.mark.parametrize("begun", [None, (2, 11), (4, 14)])
def test_a_death_in_a_run_no_longer_current_charges_nobody(begun: tuple[int, int] | None) -> None:
    settled = settle_held(HELD, begun, "crash", BROKEN, POLICY, 0.5)

    assert [(s.attempts, s.crashes) for s in settled] == [(-1, 0)] * 3


def test_what_becomes_of_claims_whose_supervisor_has_died() -> None:
    unknown, nothing = settle_interrupted(HELD, None, POLICY, 0.5), settle_interrupted(HELD, (0, 0), POLICY, 0.5)
    assert [s.crashes for s in unknown] == [1, 0, 0]  # the first in order had begun
    assert [s.crashes for s in nothing] == [0, 0, 0]  # the scoreboard tells that none had
    assert settle_interrupted([], None, POLICY, 0.5) == []
    failed = settle_interrupted(HELD, (2, 12), JobPolicy(recover="failed"), 0.5)
    assert [s.status for s in failed] == [Status.PENDING, Status.FAILED, Status.PENDING]
    last = HELD[0]._replace(crashes=1)  # a poisoned job cannot loop across restarts
    assert settle_interrupted([last], None, POLICY, 0.5)[0].status is Status.QUARANTINED


def test_an_expired_claim_is_a_crash_and_a_foreign_one_gives_no_attempt_back() -> None:
    ours = settle_expired(HELD[0], "w1", POLICY, 0.5)
    foreign = settle_expired(HELD[0], "foreign", POLICY, 0.5)

    assert (ours.attempts, ours.crashes) == (-1, 1)
    assert (foreign.attempts, foreign.crashes) == (0, 1)
    assert settle_expired(HELD[0]._replace(crashes=1), "foreign", POLICY, 0.5).status is Status.QUARANTINED


@pytest.mark.parametrize("charge", ["crash", "attempt"])
@pytest.mark.parametrize(("batch", "half"), [(2, 1), (3, 2), (16, 8)])
def test_of_a_batch_that_had_begun_all_are_suspected_and_nobody_is_charged(
    charge: Charge, batch: int, half: int
) -> None:
    settled = settle_held(HELD, (1, 11), charge, BROKEN, POLICY, 0.5, batch)
    on_purpose = settle_held(HELD, (1, 11), "nothing", BROKEN, POLICY, 0.5, batch)

    assert [s.batch_limit for s in on_purpose] == [0] * 3
    assert [(s.status, s.attempts, s.crashes, s.batch_limit) for s in settled] == [(Status.PENDING, -1, 0, half)] * 3


def test_a_batch_whose_supervisor_died_is_suspected_or_failed_as_a_whole() -> None:
    assert [s.batch_limit for s in settle_interrupted(HELD, (1, 11), POLICY, 0.5, 3)] == [2] * 3
    failing = settle_interrupted(HELD, (1, 11), JobPolicy(recover="failed"), 0.5, 3)
    assert {s.status for s in failing} == {Status.FAILED}
