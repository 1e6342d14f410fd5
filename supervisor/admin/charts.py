"""What charts show: the history in steps of a minute, a quarter of an hour, or a quarter of a day. `charts.html` draws
them. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from supervisor.admin import formatting
from supervisor.domain import history
from supervisor.domain.history import DAY, HOUR, MINUTE, OTHERS, Minute, minute_of
from supervisor.domain.text import text_of

MOST_TYPES = 5  # types with their own colour; the others share one more
WIDTH, HEIGHT = 600.0, 100.0  # of a drawing, which is stretched with the page
_GAP = 0.22  # fraction of a bar's width that is left empty
_STEPS = (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)


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


class ChartData:
    """The full minutes of a period before the current one, added up in its steps."""

    def __init__(self, rows: Iterable[Minute], period: Period, now: float) -> None:
        self.period = period
        self.times = period.times(now)
        self.until = minute_of(now)
        self._kept = [
            row._replace(
                type=text_of(row.type), run_seconds=_finite(row.run_seconds), wait_seconds=_finite(row.wait_seconds)
            )
            for row in rows
            if self.times[0] <= row.at < self.until
        ]

    def of(self, types: Collection[str]) -> ChartData:
        """The same of these types alone."""
        return ChartData([row for row in self._kept if row.type in types], self.period, self.until)

    def by_state(self) -> list[Series]:
        """Runs that ended in each step, by outcome."""
        return [Series(field, field, self._values(field)) for field in ("done", "failed")]

    def waiting(self) -> Series:
        """Jobs that were due: of each type the most in the step, added up."""
        return Series("waiting", "waiting", self._values("waiting"))

    def by_type(self) -> list[Series]:
        """Runs that ended, by type: the busiest types, sorted by name, and the others together."""
        runs: dict[str, int] = defaultdict(int)
        for row in self._kept:
            runs[row.type] += row.done + row.failed
        named = sorted((type_ for type_ in runs if type_ and runs[type_]), key=lambda type_: (-runs[type_], type_))
        series = [self.runs_of([type_], f"type-{index}") for index, type_ in enumerate(sorted(named[:MOST_TYPES]))]
        others = [*named[MOST_TYPES:], *([OTHERS] if runs[OTHERS] else [])]
        return [*series, self.runs_of(others, "type-others", "others")] if others else series

    def runs_of(self, types: Sequence[str], key: str = "done", label: str = "") -> Series:
        """Runs of some types per step, by default for a small chart."""
        done, failed = (one.values for one in self.of(types).by_state())
        return Series(key, label or types[0], tuple(a + b for a, b in zip(done, failed, strict=True)))

    def total(self) -> history.Hour:
        return history.combined(self._kept)

    def _values(self, field: str) -> tuple[float, ...]:
        values = [0.0] * len(self.times)
        for row in self._kept:
            values[int((row.at - self.times[0]) / self.period.step)] += getattr(row, field)
        return tuple(values)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def top(series: Sequence[Series]) -> float:
    """The top of the scale for stacked bars: the next round number."""
    value = max((sum(values) for values in zip(*(one.values for one in series), strict=True)), default=0.0)
    if value <= 4:
        return 4.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if step * power >= value * (1 - 1e-9))


def bars(series: Sequence[Series], times: Sequence[float]) -> Iterator[dict[str, Any]]:
    """One stacked bar per time that has a value: the place that is pointed at, its numbers, and (colour, y, height) of
    each part.
    """
    highest, place = top(series), WIDTH / max(1, len(times))
    for index, at in enumerate(times):
        values = [(one, one.values[index]) for one in series if one.values[index]]
        parts, y = [], HEIGHT
        for one, value in values:
            y -= value / highest * HEIGHT
            parts.append((one.key, y, value / highest * HEIGHT))
        if parts:
            left, text = index * place, ", ".join(f"{formatting.number(value)} {one.label}" for one, value in values)
            x, width = left + place * _GAP / 2, place * (1 - _GAP)
            yield {"at": at, "left": left, "place": place, "x": x, "width": width, "text": text, "parts": parts}


def line(series: Series) -> str:
    """The points of a small chart with its own scale."""
    highest = max(1.0, *series.values)
    step = WIDTH / max(1, len(series.values) - 1)
    return " ".join(
        f"{index * step:.2f},{HEIGHT - 2 - value / highest * (HEIGHT - 6):.2f}"
        for index, value in enumerate(series.values)
    )
