"""How many workers a pool should have, and why."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.scaling import Load, ScalingPolicy, Taken, decide, still_due

POLICY = ScalingPolicy(min_workers=1, max_workers=8, scale_down_delay=30)
FIXED = POLICY._replace(min_workers=4, max_workers=4)
IDLE = Load(due=0, busy=0, size=1, target=1, now=1000, needed_at=0, shrunk_at=0)


@pytest.mark.parametrize(
    ("load", "policy", "target", "reason"),
    [
        (IDLE, POLICY, 1, "min_workers = 1"),
        (IDLE._replace(due=5), POLICY, 5, "5 due, 0 busy"),
        (IDLE._replace(due=5, busy=2, size=2, target=2), POLICY, 7, "5 due, 2 busy"),
        (IDLE._replace(due=100), POLICY, 8, "max_workers = 8"),
        (IDLE._replace(due=1), POLICY, 1, "is enough"),
        (IDLE._replace(fixed=3), POLICY, 3, "an operator set 3"),
        (IDLE._replace(due=100, size=4, target=4, drain_rate=1000.0), POLICY, 4, "done within"),
        # A fixed size is named by its own key.
        (IDLE._replace(target=4), FIXED, 4, "nothing due: workers = 4"),
        (IDLE._replace(due=3, target=4), FIXED, 4, "3 due: workers = 4 is enough"),
        (IDLE._replace(due=100, target=4), FIXED, 4, "100 due, 0 busy; the limit is workers = 4"),
        (IDLE._replace(due=100, busy=8, size=8, target=8), POLICY, 8, "100 due; all 8 workers are busy"),
        (
            IDLE._replace(due=1, busy=1, size=1, target=1),
            POLICY._replace(max_workers=1),
            1,
            "1 due; its only worker is busy",
        ),
        # An old job is not put off by a good drain rate.
        (IDLE._replace(due=5, drain_rate=1000.0), POLICY, 1, ""),
        (IDLE._replace(due=5, drain_rate=1000.0, oldest_age=5.0), POLICY, 5, ""),
        # Several jobs may share a worker.
        (IDLE._replace(due=21), POLICY._replace(jobs_per_worker=10), 3, ""),
        # It goes down one step after a delay without need.
        (IDLE._replace(size=5, target=5, needed_at=980), POLICY, 5, ""),
        (IDLE._replace(size=5, target=5, needed_at=980, now=1010), POLICY, 4, ""),
        (IDLE._replace(size=5, target=5, needed_at=980, now=1010, shrunk_at=1000), POLICY, 5, ""),
        # It may go down to nothing, and wakes on the first job.
        (IDLE, POLICY._replace(min_workers=0), 0, ""),
        (IDLE._replace(size=0, target=0), POLICY._replace(min_workers=0), 0, ""),
        (IDLE._replace(size=0, target=0, due=1), POLICY._replace(min_workers=0), 1, ""),
    ],
)
def test_the_target_follows_the_load_and_says_why(load: Load, policy: ScalingPolicy, target: int, reason: str) -> None:
    decision = decide(load, policy)

    assert decision.target == target
    assert reason in decision.reason


loads = st.builds(
    Load,
    due=st.integers(0, 1000),
    busy=st.integers(0, 8),
    size=st.integers(0, 8),
    target=st.integers(0, 20),
    now=st.just(1000.0),
    needed_at=st.floats(0, 1000),
    shrunk_at=st.floats(0, 1000),
    oldest_age=st.floats(0, 100),
    drain_rate=st.floats(0, 1e5),
    fixed=st.none(),
)
policies = st.builds(
    ScalingPolicy,
    min_workers=st.integers(0, 4),
    max_workers=st.integers(4, 8),
    jobs_per_worker=st.integers(1, 10),
    scale_down_delay=st.floats(0, 100),
)


@given(loads, policies)
def test_whatever_the_load_the_target_keeps_to_the_bounds(load: Load, policy: ScalingPolicy) -> None:
    decision = decide(load, policy)

    assert 0 <= decision.target <= max(policy.max_workers, load.busy)
    assert decision.reason
    if load.due:
        assert decision.target >= 1
    if decision.target < min(load.target, policy.max_workers):
        assert decision.target == load.target - 1 or load.target > policy.max_workers
        assert decision.target >= load.busy


@pytest.mark.parametrize(
    ("due", "taken", "places", "left"),
    [
        (1, [], 0, 1),
        (1, [Taken(since=10.5, jobs=1)], 0, 0),  # it is the one that was due
        (1, [Taken(since=9.5, jobs=1)], 0, 1),  # it was busy when somebody looked
        (8, [Taken(since=10.5, jobs=4), Taken(since=10.6, jobs=0)], 0, 3),
        (1, [Taken(since=10.5, jobs=4)], 0, 0),
        (8, [Taken(since=10.5, jobs=4)], 3, 1),  # for which busy workers have places
        (8, [], 50, 0),
    ],
)
def test_a_job_that_was_taken_since_somebody_looked_is_not_due(
    due: int, taken: list[Taken], places: int, left: int
) -> None:
    assert still_due(due, 10.0, taken, places) == left
