"""What charts show: the history in steps of a minute, a quarter of an hour, or a quarter of a day. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from supervisor.domain import history
from supervisor.domain.history import DAY, HOUR, MINUTE, OTHERS, Minute, minute_of
from supervisor.domain.text import text_of

MOST_TYPES = 5  # types with their own colour; the others share one more


@dataclass(frozen=True, slots=True)
class Period:
    """How far back charts go, and in which steps, in seconds. Steps divide a day. `dated`: a time needs its date."""

    words: str
    each: str
    seconds: float
    step: float
    dated: bool = False

    def times(self, now: float) -> tuple[float, ...]:
        """When the steps began, oldest first: the last one contains the last full minute."""
        last = (minute_of(now) - MINUTE) // self.step * self.step
        count = int(self.seconds / self.step)
        return tuple(last - self.step * (count - 1 - index) for index in range(count))


PERIODS = {
    "1h": Period("last hour", "each minute", HOUR, MINUTE),
    "1d": Period("last day", "in each quarter of an hour", DAY, 15 * MINUTE),
    "30d": Period("last 30 days", "in each quarter of a day", 30 * DAY, 6 * HOUR, dated=True),
}
"""By their names in addresses. The first one is shown unless another is chosen."""


@dataclass(frozen=True, slots=True)
class Series:
    """One value per step, oldest first. `key` names its colour."""

    key: str
    label: str
    values: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.values)


def fitting(minute: Minute) -> Minute:
    """A minute with its type as text and finite sums: other programs may have stored any value."""
    run, wait = (value if math.isfinite(value) else 0.0 for value in (minute.run_seconds, minute.wait_seconds))
    return minute._replace(type=text_of(minute.type), run_seconds=run, wait_seconds=wait)


class ChartData:
    """The full minutes of a period before the current one, added up in its steps."""

    def __init__(self, rows: Iterable[Minute], period: Period, now: float) -> None:
        self.period = period
        self.times = period.times(now)
        self.until = minute_of(now)
        self._kept = [fitting(row) for row in rows if self.times[0] <= row.at < self.until]

    def of(self, types: Collection[str]) -> ChartData:
        """The same of these types alone."""
        found = ChartData((), self.period, self.until)
        found._kept = [row for row in self._kept if row.type in types]
        return found

    def by_state(self) -> list[Series]:
        """Runs that ended in each step, by outcome."""
        return [self._of("done"), self._of("failed")]

    def waiting(self) -> Series:
        """Jobs that were due: of each type the most in the step, added up."""
        return self._of("waiting")

    def by_type(self) -> list[Series]:
        """Runs that ended, by type: the busiest types, sorted by name, and the others together."""
        runs: dict[str, int] = defaultdict(int)
        for row in self._kept:
            runs[row.type] += row.done + row.failed
        named = sorted((type_ for type_ in runs if type_ and runs[type_]), key=lambda type_: (-runs[type_], type_))
        series = [self.runs_of([type_], f"type-{index}") for index, type_ in enumerate(sorted(named[:MOST_TYPES]))]
        others = [*named[MOST_TYPES:], *([OTHERS] if runs[OTHERS] else [])]
        return [*series, self.runs_of(others, "type-others", "others")] if others else series

    def sums(self, types: Sequence[str]) -> history.Hour:
        wanted = frozenset(types)
        return history.combined(row for row in self._kept if row.type in wanted)

    def total(self) -> history.Hour:
        return history.combined(self._kept)

    def _of(self, field: str) -> Series:
        return Series(field, field, self._values(field, self._kept))

    def runs_of(self, types: Sequence[str], key: str = "done", label: str = "") -> Series:
        """Runs of some types per step, by default for a small chart."""
        wanted = frozenset(types)
        rows = [row for row in self._kept if row.type in wanted]
        done, failed = self._values("done", rows), self._values("failed", rows)
        return Series(key, label or types[0], tuple(a + b for a, b in zip(done, failed, strict=True)))

    def _values(self, field: str, rows: Iterable[Minute]) -> tuple[float, ...]:
        values = [0.0] * len(self.times)
        for row in rows:
            values[int((row.at - self.times[0]) / self.period.step)] += getattr(row, field)
        return tuple(values)
