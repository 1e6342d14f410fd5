"""How many threads a worker may have without taking the cores from others."""

from __future__ import annotations

from collections.abc import Iterable


def share(own: frozenset[int], pools: Iterable[tuple[frozenset[int], int]]) -> int:
    """The threads of one worker on the cores `own`; `pools` are (cores, most workers) of all pools, also its own."""
    rivals = sum(workers for cores, workers in pools if cores & own)
    return max(1, len(own) // max(1, rivals))
