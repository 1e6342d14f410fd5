"""What is dear is asked again no sooner than its cost allows."""

from __future__ import annotations

import pytest

from supervisor.ops.status import Costs


class Clock:
    """Monotonic seconds that pass when a question is answered."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0

    def __call__(self) -> float:
        return self.now

    def question(self, cost: float) -> int:
        self.asked += 1
        self.now += cost
        return self.asked


def test_an_answer_is_kept_for_so_many_times_as_it_took() -> None:
    clock = Clock()
    sparing = Costs(clock)

    assert sparing.answer("it", 20, lambda: clock.question(0.5)) == 1
    clock.now += 9.9
    assert sparing.answer("it", 20, lambda: clock.question(0.5)) == 1
    clock.now += 0.2
    assert sparing.answer("it", 20, lambda: clock.question(0.5)) == 2


def test_whoever_asks_on_and_on_takes_no_more_than_that_part_of_the_time() -> None:
    clock = Clock()
    sparing = Costs(clock)
    for _ in range(10_000):
        sparing.answer("it", 20, lambda: clock.question(0.3))
        clock.now += 0.1

    assert clock.asked * 0.3 <= (clock.now - 100) / 20


def test_what_costs_nothing_is_always_new() -> None:
    clock = Clock()
    sparing = Costs(clock)

    assert [sparing.answer("it", 20, lambda: clock.question(0.0)) for _ in range(3)] == [1, 2, 3]


def test_a_question_that_fails_is_asked_again() -> None:
    clock = Clock()
    sparing = Costs(clock)

    def fail() -> int:
        clock.now += 5
        raise OSError

    with pytest.raises(OSError):  # noqa: PT011 - it says no more
        sparing.answer("it", 20, fail)
    assert sparing.answer("it", 20, lambda: clock.question(1.0)) == 1
