"""Numbers of descriptors that this process has itself given up, so that nobody takes that for a handler's deed."""

from __future__ import annotations

import os
from collections.abc import Callable

numbers: set[int] = set()


def note(close: Callable[[], None]) -> None:
    """Close something, and note the numbers that are free afterwards."""
    before = _open()
    close()
    numbers.update(before - _open())


def _open() -> set[int]:
    return {int(name) for name in os.listdir("/proc/self/fd")}  # noqa: PTH208 - names are numbers here, no paths
