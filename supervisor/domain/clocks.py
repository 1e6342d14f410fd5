"""Converts wall-clock times to monotonic times, so that ages stay correct when the wall clock is changed."""

from __future__ import annotations

from collections import deque

_SLEWED = 1.0  # seconds between two notes: a smaller difference is an adjustment, not a jump
_KEPT = 100  # jumps


class Clocks:
    """Receives both clocks regularly. A suspend, during which the monotonic clock stops, looks like a jump, too."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # (steady start, wall minus steady)

    def note(self, wall: float, steady: float) -> None:
        """Both clocks now: Unix seconds, monotonic seconds."""
        difference = wall - steady
        if not self._stretches or abs(difference - self._stretches[-1][1]) > _SLEWED:
            self._stretches.append((steady, difference))

    def steadily(self, wall: float) -> float:
        """The latest monotonic time at which the wall clock may have shown `wall`: in doubt, the younger age.

        Before the first note the same offset is assumed; a time that it has never shown is dated by its last jump.
        """
        end = float("inf")
        for number, (start, difference) in reversed(list(enumerate(self._stretches))):
            steady = wall - difference
            if steady < end and (steady >= start - _SLEWED or number == 0):
                return steady
            end = start
        return wall - self._stretches[-1][1]
