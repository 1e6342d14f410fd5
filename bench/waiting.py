"""Waiting for conditions, and what the waits come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class NotInTime(Exception):
    """A condition that should have come true has not."""


def until(condition: Callable[[], T | None], what: str, patience: float, pause: float = 0.002) -> T:
    """Wait until `condition` returns something true, and return that. Raises NotInTime after `patience` seconds."""
    deadline = time.monotonic() + patience
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {patience:g} s: {what}")
        time.sleep(pause)
    return value


def percentile(values: Sequence[float], share: float) -> float:
    """The value that this share of the values is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
