"""Checks one table of the file against its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from supervisor.config.lines import Key as Way
from supervisor.config.problems import Report, shown
from supervisor.config.values import Faults, Inner, Table


@dataclass(frozen=True, slots=True)
class Checked:
    """The keys of one table: the valid ones with their values, and the names of the others."""

    at: Way
    values: Mapping[str, Any] = field(default_factory=dict)
    faulty: frozenset[str] = frozenset()


def checked(shape: type[Table], raw: object, at: Way, report: Report) -> Checked:
    """Check one table against its shape, key by key: one problem leaves the other keys usable."""
    if not isinstance(raw, dict):
        report.add(at, f"must be a table, not {shown(raw)}")
        return Checked(at)
    values: dict[str, Any] = {}
    faulty: set[str] = set()
    for name, value in raw.items():
        way = (*at, name)
        key = shape.keys.get(name)
        if key is None:
            report.add_unknown(way, shape.keys)
            faulty.add(name)
            continue
        try:
            values[name] = key.check(value)
        except Faults as error:
            for rest, problem in error.found:
                report.add((*way, *rest), problem)
            faulty.add(name)
        except ValueError as error:
            report.add(way, str(error))
            faulty.add(name)
        else:
            if isinstance(key, Inner):
                inner = checked(key.shape, value, way, report)
                values[name] = inner.values
                if inner.faulty:
                    del values[name]
                    faulty.add(name)
    return Checked(at, values, frozenset(faulty))
