"""How many threads a worker may have."""

from __future__ import annotations

import pytest

from supervisor.domain.scaling import threads_per_worker


@pytest.mark.parametrize(
    ("own", "pools", "threads"),
    [
        (range(8), [(range(8), 2)], 4),
        (range(8), [(range(8), 3)], 2),
        (range(8), [(range(8), 2), (range(8), 2)], 2),
        (range(4), [(range(4), 2), (range(4, 8), 16)], 2),  # others have cores of their own
        (range(8), [(range(8), 2), (range(4, 8), 2)], 2),
        (range(2), [(range(2), 16)], 1),
    ],
)
def test_threads_are_the_share_of_the_cores_that_no_other_worker_uses(
    own: range, pools: list[tuple[range, int]], threads: int
) -> None:
    assert threads_per_worker(frozenset(own), [(frozenset(cores), workers) for cores, workers in pools]) == threads
