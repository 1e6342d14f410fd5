"""Numbers of descriptors that this process itself has closed, so that a handler is not blamed for it."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.system.kernel import open_descriptors

numbers: set[int] = set()


def note(close: Callable[[], None]) -> None:
    """Close something, and note the numbers that are free afterwards."""
    before = open_descriptors()
    close()
    numbers.update(before - open_descriptors())
