"""When to check after a hint of a commit, which may become visible a little later."""

from __future__ import annotations

from collections.abc import Sequence

_SPARSE = 5  # times fewer checks once something new was found


class HintWindow:
    """The checks after the last hint, at these distances from it; all times are in seconds of one clock.

    A hint may announce several commits. So once one of them was found, others are looked for, but less often.
    """

    def __init__(self, distances: Sequence[float]) -> None:
        self._distances = distances
        self._step = len(distances)
        self._stride = 1
        self.opened = 0.0

    def open(self, at: float) -> None:
        """A hint has come."""
        self.opened, self._step, self._stride = at, 0, 1

    def found(self) -> None:
        """The last check has found something new."""
        self._stride = _SPARSE

    def next_after(self, at: float) -> float | None:
        """When to check next, after a check at that time; None if the window is over."""
        while self._step < len(self._distances):
            due = self.opened + self._distances[self._step]
            if due > at:
                return due
            self._step += self._stride
        return None
