"""What the steady clock showed when the wall clock, which leaps, showed this."""

from __future__ import annotations

import pytest

from supervisor.domain.recovery import Clocks

HOURS = 3600.0
NOON = 1_800_000_000.0


def told(*notes: tuple[float, float]) -> Clocks:
    clocks = Clocks()
    for wall, steady in notes:
        clocks.note(NOON + wall, steady)
    return clocks


def test_a_clock_that_only_runs_is_steady() -> None:
    clocks = told(*((second, 50.0 + second) for second in range(100)))
    assert clocks.steadily(NOON + 30) == 80
    assert clocks.steadily(NOON - 30) == 20


@pytest.mark.parametrize("shifts", [(2,), (2, 0), (2, 0, -2), (2, 0, -2, 2), (-2,), (-2, 2, -2, 0, 2)])
def test_what_was_dated_before_all_leaps_is_no_older_than_it_is(shifts: tuple[int, ...]) -> None:
    clocks = told((0, 0), *((shift * HOURS + 10 * number, 10 * number) for number, shift in enumerate(shifts, 1)))
    assert clocks.steadily(NOON - 60) >= -60


def test_what_was_dated_after_a_leap_is_as_old_as_it_looks() -> None:
    clocks = told((0, 0), (2 * HOURS, 0))
    assert clocks.steadily(NOON + 2 * HOURS + 5) == 5


def test_what_the_clock_showed_twice_is_taken_for_the_later() -> None:
    clocks = told((0, 0), (100, 100), (50, 100))
    assert clocks.steadily(NOON + 70) == 120


def test_what_the_clock_has_never_shown_is_dated_by_its_latest_leap() -> None:
    clocks = told((0, 0), (2 * HOURS, 100))
    assert clocks.steadily(NOON + HOURS) == 100 - HOURS


def test_an_adjusted_clock_is_followed_when_it_has_drifted_far() -> None:
    clocks = told(*((second * 1.1, float(second)) for second in range(100)))
    assert clocks.steadily(NOON + 99 * 1.1) == pytest.approx(99, abs=1.1)


def test_a_suspend_counts_as_a_leap() -> None:
    clocks = told((0, 100), (8 * HOURS, 101))
    assert clocks.steadily(NOON - 5) == 95
