"""Which device a new worker gets, and how many threads it may have."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from supervisor.domain.scaling import assign, threads_per_worker


@pytest.mark.parametrize(
    ("used", "kept", "expected"),
    [
        ([], [], "0"),
        (["0"], [], "1"),
        (["0", "1"], [], "0"),
        (["0", "1", "0"], [], "1"),
        ([], ["1"], "1"),  # its predecessor's
        (["0"], ["0"], "1"),  # which has become busier than others
        (["0", "1"], [None, "7", "1"], "1"),  # one that a reload has taken away is none
        ([None, "7"], [], "0"),
    ],
)
def test_the_device_with_the_fewest_workers_is_next(
    used: list[str | None], kept: list[str | None], expected: str
) -> None:
    assert assign(["0", "1"], used, kept) == expected


def test_without_devices_nobody_gets_one() -> None:
    assert assign([], ["0"], ["0"]) is None


@given(st.integers(1, 4), st.lists(st.integers(0, 30), max_size=40))
def test_however_workers_come_and_go_no_device_has_two_more_than_another_when_all_are_replaced(
    devices: int, deaths: list[int]
) -> None:
    names = [str(number) for number in range(devices)]
    workers = [str(assign(names, []))]
    while len(workers) < 6:
        workers.append(str(assign(names, workers)))
    for death in deaths:
        lost = workers.pop(death % len(workers))
        successor = assign(names, workers, [lost])
        assert successor == lost  # it keeps its predecessor's, as long as all are replaced
        workers.append(successor)
    counts = Counter(workers)
    assert max(counts.values()) - min(counts[name] for name in names) <= 1


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
