"""When the loop must run although nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

GAP = 0.02  # minimum seconds between two passes for the same source

Source = Callable[[], Iterable[float | None]]
"""The times that a source waits for, in monotonic seconds; None for none."""


@dataclass(slots=True)
class _Timer:
    moments: Source
    rung: set[float] = field(default_factory=set)  # past times for which the loop was woken
    rung_at: float = float("-inf")

    def sleep(self, now: float) -> float:
        moments = {at for at in self.moments() if at is not None}
        self.rung &= moments
        passed = {at for at in moments if at <= now} - self.rung
        ahead = min((at - now for at in moments if at > now), default=float("inf"))
        if not passed:
            return ahead
        if now < self.rung_at + GAP:
            return min(ahead, self.rung_at + GAP - now)
        self.rung |= passed
        self.rung_at = now
        return 0.0


class Timers:
    """The only place that computes the loop's sleep: everything that waits for a time is a source here.

    A time wakes the loop while it is in the future, and once when it has passed. If its source does not change it, it
    has no further effect; and a source that names one past time after another gets a pass every GAP seconds. So a
    forgotten time cannot make the loop spin.
    """

    def __init__(self) -> None:
        self._timers: dict[str, _Timer] = {}

    def add(self, name: str, moments: Source) -> None:
        self._timers[name] = _Timer(moments)

    def sleep(self, now: float) -> float:
        """Seconds until the next pass; infinite if no source waits for a time."""
        return min((timer.sleep(now) for timer in self._timers.values()), default=float("inf"))
