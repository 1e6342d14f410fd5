"""What one worker of a pool needs, as measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from supervisor.domain.tenants import Need

PERIOD = 600.0  # seconds for which a measurement counts at least


class RecentPeak(NamedTuple):
    """The largest of the values seen lately. Of two periods, so that a value counts for one period at least, and until
    the next values are seen. Times are monotonic seconds.
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


@dataclass(slots=True)
class WorkerSize:
    """What one worker needs; bytes. All but `known` was measured since the last reload."""

    memory: RecentPeak = field(default_factory=RecentPeak)  # 0: not measured
    has_settled: bool = False  # one was measured behind a job: before its first one, a worker may still grow
    on_device: RecentPeak | None = None  # None: not measured
    metered: bool = False  # the memory of every worker is measured
    known: Need | None = None  # as last measured, perhaps before the reload
