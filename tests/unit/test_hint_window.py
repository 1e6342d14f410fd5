"""When to check after a hint of a commit."""

from __future__ import annotations

import pytest

from supervisor.domain.polling import HintWindow

DISTANCES = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)


def checks(window: HintWindow, at: float, found_at: float | None = None) -> list[float]:
    """The times of all checks after this one; that at `found_at` finds something."""
    times = []
    while (due := window.next_after(at)) is not None:
        times.append(due)
        at = due
        if due == found_at:
            window.found()
    return times


@pytest.fixture
def window() -> HintWindow:
    made = HintWindow(DISTANCES)
    assert made.next_after(5.0) is None  # before the first hint nothing is checked
    made.open(100.0)
    return made


def test_after_a_hint_checks_follow_at_growing_distances_and_a_late_one_stands_for_those_before_it(
    window: HintWindow,
) -> None:
    assert window.next_after(110.0) == 116.0
    window.open(200.0)
    assert checks(window, 199.0) == [200.0 + distance for distance in DISTANCES]


def test_what_a_hint_announces_twice_is_still_found_but_with_fewer_checks(window: HintWindow) -> None:
    after = [at for at in checks(window, 99.0, found_at=101.0) if at > 101.0]
    assert after == [132.0]
    window.open(200.0)  # the next hint is checked as closely as the first
    assert checks(window, 199.0) == [200.0 + distance for distance in DISTANCES]
