"""Whoever looks after each commit does so at once, and never spends more than a share of a core on it."""

from __future__ import annotations

import pytest

from supervisor.domain.polling import Pace


def test_looks_that_come_rarely_are_followed_by_no_rest() -> None:
    pace = Pace()
    assert [pace.rest_after(at, 0.0001) for at in (10.0, 10.001, 10.002, 10.5, 10.501)] == [0.0] * 5


@pytest.mark.parametrize("cost", [0.00005, 0.0005, 0.005])
def test_looks_without_end_cost_a_twentieth_of_the_time(cost: float) -> None:
    pace, now, spent = Pace(), 10.0, 0.0
    while now < 20.0:
        spent += cost
        now += cost
        now += pace.rest_after(now, cost)
    assert spent / 10.0 < 0.055


def test_rests_that_somebody_new_cuts_short_do_not_add_up() -> None:
    pace = Pace()
    assert max(pace.rest_after(10.0 + number * 0.001, 0.0005) for number in range(100)) <= 20 * 0.0005


def test_no_look_is_followed_by_more_than_a_second_without_one() -> None:
    pace = Pace()
    assert max(pace.rest_after(10.0 + number, 3.0) for number in range(5)) == 1.0


def test_a_rest_is_long_enough_to_be_worth_it() -> None:
    pace, now = Pace(), 10.0
    rests = []
    for _ in range(100):
        now += 0.0001
        rests.append(pace.rest_after(now, 0.0001))
        now += rests[-1]
    assert 0.0 in rests
    assert min(filter(None, rests)) >= 0.005
