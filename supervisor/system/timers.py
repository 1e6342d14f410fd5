"""When the loop must go on although nothing happens."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

GAP = 0.02  # seconds between two passes for the same source, whatever it says

Source = Callable[[], Iterable[float | None]]
"""The moments that somebody waits for, in monotonic seconds; None for none."""


@dataclass(slots=True)
class _Timer:
    moments: Source
    rung: set[float] = field(default_factory=set)  # moments in the past for which the loop was woken
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
    """The one place that computes the loop's sleep: everything that waits for a moment is a source here.

    A moment wakes the loop while it lies ahead, and once when it has passed. Whoever leaves it standing is not
    asked about it again, and a source that names one moment in the past after another gets a pass every GAP
    seconds: so nothing that was forgotten can make the loop spin.
    """

    def __init__(self) -> None:
        self._timers: dict[str, _Timer] = {}

    def add(self, name: str, moments: Source) -> None:
        self._timers[name] = _Timer(moments)

    def sleep(self, now: float) -> float:
        """Seconds until the next pass; infinite if nobody waits for a moment."""
        return min((timer.sleep(now) for timer in self._timers.values()), default=float("inf"))
