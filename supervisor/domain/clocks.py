"""When was it, by the steady clock, that the wall clock showed this? For ages that no leap of a clock changes."""

from __future__ import annotations

from collections import deque

_SLEWED = 1.0  # seconds between two notes: less is a clock that is being adjusted, not one that leaps
_KEPT = 100  # leaps


class Clocks:
    """Told both clocks now and then. A suspend, in which the steady clock stands still, looks like a leap, too."""

    def __init__(self) -> None:
        self._stretches: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # (steady start, wall minus steady)

    def note(self, wall: float, steady: float) -> None:
        """Both clocks at this moment: Unix seconds, monotonic seconds."""
        difference = wall - steady
        if not self._stretches or abs(difference - self._stretches[-1][1]) > _SLEWED:
            self._stretches.append((steady, difference))

    def steadily(self, wall: float) -> float:
        """The latest steady time at which the wall clock may have shown that: in doubt, things are young.

        Before the first note it is taken to have run as then; what it has never shown is dated by its last leap.
        """
        end = float("inf")
        for number, (start, difference) in reversed(list(enumerate(self._stretches))):
            steady = wall - difference
            if steady < end and (steady >= start - _SLEWED or number == 0):
                return steady
            end = start
        return wall - self._stretches[-1][1]
