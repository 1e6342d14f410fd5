"""What a run has measured: raw values by round, and the reasons where there are none."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.waiting import percentile


@dataclass(frozen=True, order=True)
class Key:
    """What was measured (`figure`), of whom, and in which case: ("throughput", "huey", "2 workers")."""

    figure: str
    contestant: str
    case: str = ""


@dataclass
class Series:
    """The values of one key: a list a round, one value or many."""

    unit: str
    rounds: list[list[float]] = field(default_factory=list)

    @property
    def values(self) -> list[float]:
        return [value for values in self.rounds for value in values]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def highest(self) -> float:
        return max(self.values)

    def percentile(self, share: float) -> float:
        return percentile(self.values, share)


@dataclass(frozen=True)
class Absence:
    """Something that was not measured, and why. `case` is empty when it was none of them."""

    figure: str
    contestant: str
    case: str
    reason: str


@dataclass
class Record:
    """One whole run. `about` says on what machine and how it was made."""

    about: dict[str, Any] = field(default_factory=dict)
    series: dict[Key, Series] = field(default_factory=dict)
    absences: list[Absence] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)  # each measurement's

    def add(self, key: Key, unit: str, values: list[float]) -> None:
        self.series.setdefault(key, Series(unit)).rounds.append(values)

    def keep(
        self, contestant: str, case: str, reading: Mapping[str, Sequence[float]], units: Mapping[str, str]
    ) -> None:
        """What one contestant has given in one case, by figure."""
        for figure, values in reading.items():
            self.add(Key(figure, contestant, case), units[figure], [float(value) for value in values])

    def miss(self, absence: Absence) -> None:
        if absence not in self.absences:
            self.absences.append(absence)

    def get(self, figure: str, contestant: str, case: str = "") -> Series | None:
        return self.series.get(Key(figure, contestant, case))

    def why_not(self, figure: str, contestant: str) -> str:
        """Why there is no such figure."""
        for absence in self.absences:
            if absence.contestant == contestant and absence.figure in (figure, ""):
                return absence.reason
        return "not measured in this run"

    # As a file

    def to_json(self) -> str:
        """One line a series, so that runs can be compared line by line."""
        head = {"about": self.about, "seconds": {name: round(taken, 1) for name, taken in self.seconds.items()}}
        absences = [vars(absence) for absence in self.absences]
        lines = [
            json.dumps(vars(key) | {"unit": series.unit, "rounds": [[_short(v) for v in r] for r in series.rounds]})
            for key, series in self.series.items()
        ]
        body = ",\n    ".join(lines)
        opening = json.dumps(head | {"absences": absences}, indent=2, ensure_ascii=False).removesuffix("\n}")
        return f'{opening},\n  "series": [\n    {body}\n  ]\n}}\n'

    @classmethod
    def from_json(cls, text: str) -> Record:
        read = json.loads(text)
        record = cls(about=read["about"], seconds=read["seconds"])
        record.absences = [Absence(**absence) for absence in read["absences"]]
        for row in read["series"]:
            key = Key(row["figure"], row["contestant"], row["case"])
            record.series[key] = Series(row["unit"], row["rounds"])
        return record


def _short(value: float) -> float:
    """Six significant digits: more is noise."""
    return float(f"{value:.6g}")
