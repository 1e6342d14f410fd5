"""When to check after a hint of a commit."""

from __future__ import annotations

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


def test_before_the_first_hint_nothing_is_checked() -> None:
    assert HintWindow(DISTANCES).next_after(5.0) is None


def test_after_a_hint_checks_follow_at_growing_distances() -> None:
    window = HintWindow(DISTANCES)
    window.open(100.0)
    assert checks(window, 99.0) == [100.0 + distance for distance in DISTANCES]


def test_a_late_check_stands_for_those_before_it() -> None:
    window = HintWindow(DISTANCES)
    window.open(100.0)
    assert window.next_after(110.0) == 116.0


def test_what_a_hint_announces_twice_is_still_found_but_with_fewer_checks() -> None:
    window = HintWindow(DISTANCES)
    window.open(100.0)
    after = [at for at in checks(window, 99.0, found_at=101.0) if at > 101.0]
    assert after == [132.0]


def test_the_next_hint_is_checked_as_closely_as_the_first() -> None:
    window = HintWindow(DISTANCES)
    window.open(100.0)
    window.found()
    window.open(200.0)
    assert checks(window, 199.0) == [200.0 + distance for distance in DISTANCES]
