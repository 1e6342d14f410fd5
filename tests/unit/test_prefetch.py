"""How many jobs a worker claims at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.batching import MOST_PREFETCHED, PREFETCH_TARGET, Prefetch


def test_a_fixed_number_is_always_that() -> None:
    pace = Prefetch(7)
    pace.observe(7, 100.0)

    assert pace.want == 7


@given(st.floats(1e-7, 1000))
def test_a_steady_speed_leads_to_what_fits_into_the_target(seconds: float) -> None:
    pace = Prefetch()
    for _ in range(40):
        pace.observe(1, seconds)

    assert 1 <= pace.want <= MOST_PREFETCHED
    assert pace.want == 1 or (pace.want - 1) * seconds <= PREFETCH_TARGET * 1.01


def test_one_slow_batch_is_enough_to_claim_one() -> None:
    pace = Prefetch()
    assert pace.want == 1  # nothing is known yet
    pace.observe(1000, 0.01)
    assert pace.want == MOST_PREFETCHED

    pace.observe(1, 1.0)
    assert pace.want == 1

    pace.observe(1, 0.00001)  # which is not believed at once
    assert pace.want == 1


@given(st.lists(st.tuples(st.integers(-5, 300), st.floats(0, 1e6))))
def test_whatever_is_observed_the_number_stays_in_its_bounds(batches: list[tuple[int, float]]) -> None:
    pace = Prefetch()
    for jobs, seconds in batches:
        pace.observe(jobs, seconds)

    assert 1 <= pace.want <= MOST_PREFETCHED
