"""The last hour, computed from the maintainer's history by minute. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from supervisor.domain import history
from supervisor.domain.history import KEPT, MINUTE, OTHERS, Minute, minute_of
from supervisor.domain.text import text_of

MINUTES = int(KEPT / MINUTE)
MOST_TYPES = 5  # types with their own colour; the others share one more


@dataclass(frozen=True, slots=True)
class Series:
    """One value per minute, oldest first. `key` names its colour."""

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


class Hour:
    """The sixty full minutes before the current one. `times` are Unix seconds."""

    def __init__(self, minutes: Iterable[Minute], now: float) -> None:
        last = minute_of(now) - MINUTE
        self.times = tuple(last - MINUTE * (MINUTES - 1 - index) for index in range(MINUTES))
        self._kept = [fitting(minute) for minute in minutes if self.times[0] <= minute.at <= last]

    def by_state(self) -> list[Series]:
        """Runs that ended in each minute, by outcome."""
        return [self._of("done"), self._of("failed")]

    def waiting(self) -> Series:
        return self._of("waiting")

    def by_type(self) -> list[Series]:
        """Runs that ended, by type: the busiest types, sorted by name, and the others together."""
        runs: dict[str, int] = defaultdict(int)
        for minute in self._kept:
            runs[minute.type] += minute.done + minute.failed
        named = sorted((type_ for type_ in runs if type_ and runs[type_]), key=lambda type_: (-runs[type_], type_))
        series = [self.runs_of([type_], f"type-{index}") for index, type_ in enumerate(sorted(named[:MOST_TYPES]))]
        others = [*named[MOST_TYPES:], *([OTHERS] if runs[OTHERS] else [])]
        return [*series, self.runs_of(others, "type-others", "others")] if others else series

    def sums(self, types: Sequence[str]) -> history.Hour:
        wanted = frozenset(types)
        return history.hour_of(minute for minute in self._kept if minute.type in wanted)

    def total(self) -> history.Hour:
        return history.hour_of(self._kept)

    def _of(self, field: str) -> Series:
        return Series(field, field, self._values(field, self._kept))

    def runs_of(self, types: Sequence[str], key: str = "done", label: str = "") -> Series:
        """Runs of some types per minute, by default for a small chart."""
        wanted = frozenset(types)
        minutes = [minute for minute in self._kept if minute.type in wanted]
        done, failed = self._values("done", minutes), self._values("failed", minutes)
        return Series(key, label or types[0], tuple(a + b for a, b in zip(done, failed, strict=True)))

    def _values(self, field: str, minutes: Iterable[Minute]) -> tuple[float, ...]:
        values = [0.0] * MINUTES
        for minute in minutes:
            values[round((minute.at - self.times[0]) / MINUTE)] += getattr(minute, field)
        return tuple(values)
