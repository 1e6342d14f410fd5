"""The largest of the values seen lately. What was larger, long ago, is forgotten."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

PERIOD = 600.0  # seconds


class RecentPeak(NamedTuple):
    """Of two periods, so that a value counts for one period at least, and until the next values are seen. Times are
    monotonic seconds.
    """

    latest: int = 0
    before: int = 0
    began: float = 0.0

    @property
    def value(self) -> int:
        return max(self.latest, self.before)

    def over(self, now: float) -> bool:
        """Whether a new period begins with the next values."""
        return now - self.began >= PERIOD

    def seen(self, values: Iterable[int], now: float) -> RecentPeak:
        most = max(values, default=0)
        if not self.value:
            return RecentPeak(most, 0, now)
        return RecentPeak(most, self.latest, now) if self.over(now) else self._replace(latest=max(self.latest, most))
