"""What becomes of a claimed job, decided with plain values."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.job import Claim, NewJob, Status
from supervisor.domain.settlement import (
    Failure,
    FollowUps,
    RetryPolicy,
    cancelled,
    clipped,
    crashed,
    done,
    failed,
    follow_up,
    released,
)
from supervisor.domain.text import LONGEST_DELAY
from supervisor.domain.values import MAX_PAYLOAD_BYTES

POLICY = RetryPolicy(max_attempts=3, backoff="fixed", base=10, jitter=0)
BROKEN = Failure("exception", "broken")


def claim(attempt: int = 1, max_attempts: int | None = None, crashes: int = 0) -> Claim:
    return Claim(7, 3, "tag", "{}", attempt, max_attempts, crashes)


@pytest.mark.parametrize(
    "settlement",
    [
        done(claim(), None),
        released(claim()),
        cancelled(claim()),
        failed(claim(), BROKEN, POLICY, chance=0.5),
        crashed(claim(), BROKEN, POLICY, 3, chance=0.5),
    ],
)
def test_every_settlement_names_its_job_and_token(settlement: object) -> None:
    assert (settlement.job_id, settlement.token) == (7, 3)  # type: ignore[attr-defined]


def test_only_a_plain_success_is_simple_and_a_release_charges_nothing() -> None:
    assert done(claim(), None).simple
    assert not done(claim(), None, children=(NewJob("tag", "{}"),)).simple
    given_back = released(claim())
    assert not given_back.simple
    assert (given_back.status, given_back.attempts, given_back.crashes) == (Status.PENDING, -1, 0)


@given(st.integers(1, 50), st.integers(1, 50), st.none() | st.integers(1, 50))
def test_a_job_fails_exactly_when_its_attempts_are_used_up(attempt: int, pools: int, own: int | None) -> None:
    settlement = failed(claim(attempt, own), BROKEN, RetryPolicy(max_attempts=pools, base=1, jitter=0), chance=0.5)

    used_up = attempt >= (pools if own is None else own)
    assert settlement.status is (Status.FAILED if used_up else Status.PENDING)
    assert (settlement.delay == 0) is used_up
    assert settlement.attempts == 0  # the claim has charged it


@pytest.mark.parametrize(("after", "delay"), [(None, 10), (0.0, 0), (99.0, 99), (1e300, LONGEST_DELAY)])
def test_the_handlers_delay_goes_before_the_policys(after: float | None, delay: float) -> None:
    assert failed(claim(), BROKEN, POLICY, chance=0.5, after=after).delay == delay
    for_good = failed(claim(), BROKEN, POLICY, chance=0.5, permanent=True, after=after)
    assert (for_good.status, for_good.delay) == (Status.FAILED, 0)


@given(st.integers(0, 20), st.integers(1, 20))
def test_a_job_is_quarantined_exactly_when_its_crashes_are_used_up(crashes: int, most: int) -> None:
    settlement = crashed(claim(crashes=crashes), BROKEN, POLICY, most, chance=0.5)

    used_up = crashes + 1 >= most
    assert settlement.status is (Status.QUARANTINED if used_up else Status.PENDING)
    assert (settlement.attempts, settlement.crashes) == (-1, 1)


@given(st.text(), st.integers(3, 50))
def test_a_long_text_keeps_its_beginning_and_more_of_its_end(text: str, limit: int) -> None:
    text = text.replace("\0", "\ufffd")
    begin = limit // 4
    result = clipped(text, limit)

    if len(text) <= limit:
        assert result == text
    else:
        assert len(result) == limit
        assert (result[:begin], result[begin : begin + 3]) == (text[:begin], " … ")
        assert text.endswith(result[begin + 3 :])


def test_what_no_database_can_store_is_escaped_or_replaced() -> None:
    assert clipped("\ud800\0\x1b[31m", 100) == "\\ud800\ufffd\x1b[31m"


def test_the_first_crash_costs_no_delay_and_later_ones_back_off() -> None:
    policy = RetryPolicy(base=2, jitter=0)
    delays = [crashed(claim(crashes=before), BROKEN, policy, 99, chance=0.5).delay for before in range(4)]
    assert delays == [0, 2, 4, 8]


@pytest.mark.parametrize("size", [MAX_PAYLOAD_BYTES // 2, MAX_PAYLOAD_BYTES - 2])
def test_a_result_that_is_too_large_for_the_follow_up_is_left_out_and_that_is_said(size: int) -> None:
    [job] = follow_up(done(claim(), f'"{"ö" * (size // 2)}"')._replace(follow=FollowUps("next")))
    payload = json.loads(job.payload)
    assert len(job.payload.encode()) <= MAX_PAYLOAD_BYTES
    assert (payload["result"] is None) is (payload["error"] is not None) is (size > MAX_PAYLOAD_BYTES // 2)
