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


@pytest.mark.parametrize("shifts", [(2,), (2, 0), (2, 0, -2), (2, 0, -2, 2), (-2,), (-2, 2, -2, 0, 2)])
def test_what_was_dated_before_all_leaps_is_no_older_than_it_is(shifts: tuple[int, ...]) -> None:
    clocks = told((0, 0), *((shift * HOURS + 10 * number, 10 * number) for number, shift in enumerate(shifts, 1)))
    assert clocks.steadily(NOON - 60) >= -60


RUNS = [(second, 50.0 + second) for second in range(100)]


@pytest.mark.parametrize(
    ("notes", "dated", "steady"),
    [
        pytest.param(RUNS, 30, 80, id="a clock that only runs"),
        pytest.param(RUNS, -30, 20, id="and before its first note"),
        pytest.param([(0, 0), (2 * HOURS, 0)], 2 * HOURS + 5, 5, id="after a leap: as old as it looks"),
        pytest.param([(0, 0), (100, 100), (50, 100)], 70, 120, id="shown twice: the later"),
        pytest.param([(0, 0), (2 * HOURS, 100)], HOURS, 100 - HOURS, id="never shown: by its latest leap"),
        pytest.param([(0, 100), (8 * HOURS, 101)], -5, 95, id="a suspend counts as a leap"),
    ],
)
def test_a_date_is_that_moment_of_the_steady_clock(
    notes: list[tuple[float, float]], dated: float, steady: float
) -> None:
    assert told(*notes).steadily(NOON + dated) == steady


def test_an_adjusted_clock_is_followed_when_it_has_drifted_far() -> None:
    clocks = told(*((second * 1.1, float(second)) for second in range(100)))
    assert clocks.steadily(NOON + 99 * 1.1) == pytest.approx(99, abs=1.1)
