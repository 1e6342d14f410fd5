"""A late beat alone condemns nobody; no beat and no CPU does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.process_health import Signs, Verdict, first_late, judge

LATE = Signs(at=200.0, beat=100.0, cpu=50.0, state="R")
EARLIER = LATE._replace(at=160.0)


@pytest.mark.parametrize(
    ("now", "earlier", "verdict"),
    [
        (LATE._replace(beat=199.0), None, Verdict.WELL),
        (LATE._replace(beat=199.0, state="T"), EARLIER, Verdict.WELL),
        (LATE._replace(beat=190.0), EARLIER, Verdict.WELL),
        (LATE, None, Verdict.BUSY),  # seen late for the first time
        (LATE._replace(cpu=60.0), EARLIER, Verdict.BUSY),  # native code holds the interpreter's lock
        (LATE, EARLIER, Verdict.STUCK),
        (LATE._replace(cpu=50.01), EARLIER, Verdict.STUCK),  # waking and sleeping is no work
        (LATE, LATE._replace(at=195.0), Verdict.BUSY),  # not watched for long enough
        (LATE._replace(cpu=None, state=None), EARLIER, Verdict.BUSY),  # nobody can look at it
        (LATE, EARLIER._replace(cpu=None, state=None), Verdict.BUSY),
        (LATE._replace(state="T"), None, Verdict.STOPPED),
        (LATE._replace(state="t"), EARLIER, Verdict.STOPPED),
    ],
)
def test_the_verdict_follows_the_signs(now: Signs, earlier: Signs | None, verdict: Verdict) -> None:
    assert judge(now, earlier, 60.0) is verdict


@given(st.floats(0, 1e6), st.floats(0, 59.9), st.sampled_from("RSDTtZ"))
def test_a_fresh_beat_is_always_well(at: float, age: float, state: str) -> None:
    assert judge(Signs(at + age, at, 0, state), None, 60.0) is Verdict.WELL


@pytest.mark.fault(30)
def test_a_process_that_nobody_could_look_at_is_watched_anew_from_when_somebody_can() -> None:
    unknown = EARLIER._replace(cpu=None, state=None)

    assert first_late(None, unknown) is unknown
    assert first_late(unknown, LATE) is LATE
    assert first_late(EARLIER, unknown) is EARLIER
    assert first_late(EARLIER, LATE) is EARLIER
