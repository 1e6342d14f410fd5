"""An expired lock is taken only after its owner has had the time to renew it, and has not."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.recovery import LeaseObserver, observation_time, renewal_interval

LOCK_TIME = 60.0
EVERY = observation_time(LOCK_TIME) / 4


def watched(looks: list[tuple[float, bool]]) -> float:
    """For how long a row counts as watched after looks at these times, where writing was possible or not."""
    observer: LeaseObserver[str] = LeaseObserver(EVERY)
    for at, writable in looks:
        observer = observer.look(["row"], at, writable=writable)
    return observer.watched["row"]


@given(st.floats(0.001, 1e6))
def test_whoever_takes_a_lock_has_waited_for_two_renewals(lock_time: float) -> None:
    assert observation_time(lock_time) >= 2 * renewal_interval(lock_time)


def test_the_first_look_proves_nothing_and_further_ones_the_time_between_them() -> None:
    assert watched([(1000.0, True)]) == 0.0
    assert watched([(1000.0, True), (1005.0, True), (1009.0, True)]) == 9.0


def test_a_row_that_changed_or_was_gone_starts_again() -> None:
    observer: LeaseObserver[str] = LeaseObserver(EVERY)
    observer = observer.look(["a", "b"], 0.0, writable=True).look(["a", "b"], 5.0, writable=True)
    assert dict(observer.watched) == {"a": 5.0, "b": 5.0}

    observer = observer.look(["a"], 10.0, writable=True).look(["a", "b"], 15.0, writable=True)

    assert dict(observer.watched) == {"a": 15.0, "b": 0.0}


def test_time_in_which_nobody_could_write_does_not_count() -> None:
    assert watched([(0.0, True), (5.0, True), (10.0, False)]) == 0.0
    assert watched([(0.0, True), (5.0, True), (10.0, False), (15.0, True)]) == 5.0


@pytest.mark.parametrize("pause", [1.1, 2.9, 3.1, 1000.0])
def test_being_stopped_together_with_the_owner_proves_nothing(pause: float) -> None:
    """As long as it takes to be patient, and longer: what is left is a whole renewal."""
    looks = [(0.0, True), (observation_time(LOCK_TIME) * pause, True)]

    assert observation_time(LOCK_TIME) - watched(looks) >= renewal_interval(LOCK_TIME)


@given(st.lists(st.floats(0.0, EVERY), min_size=20, max_size=40))
def test_with_looks_in_time_patience_ends(gaps: list[float]) -> None:
    times = list(itertools.accumulate(gaps, initial=100.0))

    assert watched([(at, True) for at in times]) == pytest.approx(times[-1] - times[0])
