"""Which priorities a pool takes."""

from __future__ import annotations


def high_enough(priority: int, min_priority: int | None) -> bool:
    """Whether a pool with this `min_priority` takes jobs of this priority; None takes all."""
    return min_priority is None or priority >= min_priority


def at_least(priority: int, min_priority: int | None) -> int:
    """This priority, or the lowest that a pool takes if that is higher."""
    return priority if min_priority is None else max(priority, min_priority)
