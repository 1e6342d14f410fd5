"""The last hour, put together from the maintainer's minutes. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from supervisor.domain.history import KEPT, MINUTE, OTHERS, Minute, minute_of

MINUTES = int(KEPT / MINUTE)
MOST_TYPES = 5  # that have a colour of their own; what is left is one more


@dataclass(frozen=True, slots=True)
class Series:
    """One value a minute, the oldest first. `key` names its colour."""

    key: str
    label: str
    values: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.values)


@dataclass(frozen=True, slots=True)
class Sums:
    """Some types in the last hour. `wait` and `run` are mean seconds, None where nothing ran."""

    done: int = 0
    failed: int = 0
    wait: float | None = None
    run: float | None = None

    @property
    def runs(self) -> int:
        return self.done + self.failed

    @property
    def failing(self) -> float | None:
        """The share of runs that failed, 0 to 1."""
        return self.failed / self.runs if self.runs else None


class Hour:
    """The sixty minutes before this one, which is not over yet. `times` are Unix seconds."""

    def __init__(self, minutes: Iterable[Minute], now: float) -> None:
        last = minute_of(now) - MINUTE
        self.times = tuple(last - MINUTE * (MINUTES - 1 - index) for index in range(MINUTES))
        self._kept = [minute for minute in minutes if self.times[0] <= minute.at <= last]

    @property
    def is_empty(self) -> bool:
        return not any(minute.done or minute.failed or minute.waiting for minute in self._kept)

    def by_state(self) -> list[Series]:
        """Runs that ended, a minute each."""
        return [
            Series("done", "done", self._values("done", self._kept)),
            Series("failed", "failed", self._values("failed", self._kept)),
        ]

    def waiting(self) -> Series:
        return Series("waiting", "waiting", self._values("waiting", self._kept))

    def by_type(self) -> list[Series]:
        """Runs that ended, by type: the busiest ones, in their order of names, and the others together."""
        runs: dict[str, int] = defaultdict(int)
        for minute in self._kept:
            runs[minute.type] += minute.done + minute.failed
        named = sorted((type_ for type_ in runs if type_ and runs[type_]), key=lambda type_: (-runs[type_], type_))
        series = [self._of_types(f"type-{index}", [type_]) for index, type_ in enumerate(sorted(named[:MOST_TYPES]))]
        others = [*named[MOST_TYPES:], *([OTHERS] if runs[OTHERS] else [])]
        return [*series, self._of_types("type-others", others, "others")] if others else series

    def sums(self, types: Sequence[str]) -> Sums:
        minutes = [minute for minute in self._kept if minute.type in types]
        done, failed = sum(minute.done for minute in minutes), sum(minute.failed for minute in minutes)
        if not done + failed:
            return Sums()
        wait, run = sum(minute.wait_seconds for minute in minutes), sum(minute.run_seconds for minute in minutes)
        return Sums(done, failed, wait / (done + failed), run / (done + failed))

    def total(self) -> Sums:
        return self.sums(sorted({minute.type for minute in self._kept}))

    def runs_of(self, types: Sequence[str]) -> Series:
        """Runs of some types a minute, for a small chart."""
        return self._of_types("done", types)

    def _of_types(self, key: str, types: Sequence[str], label: str = "") -> Series:
        minutes = [minute for minute in self._kept if minute.type in types]
        done, failed = self._values("done", minutes), self._values("failed", minutes)
        return Series(key, label or types[0], tuple(a + b for a, b in zip(done, failed, strict=True)))

    def _values(self, field: str, minutes: Iterable[Minute]) -> tuple[float, ...]:
        values = [0.0] * MINUTES
        for minute in minutes:
            values[round((minute.at - self.times[0]) / MINUTE)] += getattr(minute, field)
        return tuple(values)
