"""A moment wakes the loop; one that was forgotten does not make it spin."""

from __future__ import annotations

import pytest

from supervisor.system.signals import GAP, Timers


def timers(moments: list[float | None]) -> Timers:
    made = Timers()
    made.add("one", lambda: moments)
    return made


def test_the_loop_sleeps_until_the_next_moment() -> None:
    assert timers([7.0, None, 5.0]).sleep(4.0) == 1.0
    assert timers([]).sleep(4.0) == float("inf")


@pytest.mark.fault(67)
def test_a_moment_that_has_passed_wakes_the_loop_once() -> None:
    made = timers([5.0])
    assert made.sleep(6.0) == 0.0
    assert [made.sleep(6.0 + n) for n in range(3)] == [float("inf")] * 3


def test_a_forgotten_moment_hides_none_that_lies_ahead() -> None:
    made = timers([5.0, 9.0])
    made.sleep(6.0)
    assert made.sleep(6.0) == 3.0
    assert made.sleep(9.5) == 0.0


@pytest.mark.fault(67)
def test_a_source_that_always_names_the_past_gets_few_passes() -> None:
    now = 100.0
    made = Timers()
    made.add("wild", lambda: [now - 1.0])
    passes = 0
    while now < 101.0:
        sleep = made.sleep(now)
        passes += 1
        now += max(sleep, 1e-4)
    assert passes < 3 / GAP
