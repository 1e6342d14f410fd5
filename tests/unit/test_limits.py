"""Rates: what may be written, and how an interval is written again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.config.limits import LIMITS, contradiction, limits_of, written
from supervisor.domain.limits import Limits, interval_of, rate_of
from supervisor.tasks import DECLARED

LENGTHS = st.sampled_from(["", *["2", "3", "5", "10", "30", "90", "1.5"]])
COMMON = [
    "50/s",
    "1/s",
    "100/m",
    "1/5s",
    "3/5s",
    "7/90s",
    "2/h",
    "1/d",
    "999/s",
    "100000/s",
    "60/m",
    "3600/h",
    "500/2s",
]


@pytest.mark.parametrize("rate", COMMON)
def test_a_rate_is_written_as_people_wrote_it(rate: str) -> None:
    assert rate_of(interval_of(rate)) == rate


@given(st.integers(1, 100_000), LENGTHS, st.sampled_from("smhd"))
def test_a_rate_written_again_is_the_same(count: int, length: str, unit: str) -> None:
    try:
        interval = interval_of(f"{count}/{length}{unit}")
    except ValueError:
        return
    assert interval_of(rate_of(interval)) == pytest.approx(interval, rel=0.02)


@pytest.mark.parametrize("interval", [0.0, -1.0, 1e-300, 1e300, float("inf")])
def test_an_interval_that_nobody_can_have_meant_is_shown(interval: float) -> None:
    assert rate_of(interval) in ("100000/s", "0/d")


@pytest.mark.parametrize("rate", ["0/s", "/s", "5", "5/", "x/s", "5/0s", "5/y", "²/s", "-1/s", "1.5/s", "1/32d", ""])
def test_what_is_no_rate_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        interval_of(rate)


@pytest.mark.parametrize("rate", ["100001/s", "1000/1ms", "100001/m", "9" * 5000 + "/s"])
def test_a_rate_that_is_too_high_is_refused(rate: str) -> None:
    with pytest.raises(ValueError, match="is too high"):
        interval_of(rate)


def test_a_change_leaves_the_other_limits_and_none_takes_one_away() -> None:
    before = Limits(max_running=5, interval=1.0, burst=3, max_failures=2, breaker_pause=9.0)
    assert limits_of({"max_running": None, "burst": None}, before) == before._replace(max_running=None, burst=1)
    assert limits_of({"breaker": None, "timeout": 3.0}, before) == Limits(5, interval=1.0, burst=3)
    assert limits_of({"breaker": {"pause": 1.0}}) == Limits(max_failures=5, breaker_pause=1.0)


def test_what_a_file_says_is_written_again() -> None:
    values = {"rate": interval_of("50/s"), "concurrency_per_key": 2, "rate_per_key": interval_of("1/m"), "fair": True}
    assert written(limits_of(values)) == {"rate": "50/s", "concurrency_per_key": 2, "rate_per_key": "1/m", "fair": True}
    assert contradiction(limits_of(values)) is None


def test_the_decorator_has_every_limit() -> None:
    assert LIMITS.keys() < DECLARED
