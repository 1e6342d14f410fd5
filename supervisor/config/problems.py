"""The tables of a configuration file checked key by key, and every problem put into words: one readable line each."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.config.checks import MUST_BE_TABLE, Keys, Way, shown
from supervisor.config.settings import TABLES
from supervisor.domain.errors import InvalidJob
from supervisor.domain.schedule import NoTimeZones
from supervisor.domain.text import like

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 300  # characters of one problem's text; a line should be quick to read


_MEANT = {"processes": "workers", "queue": "types", "queues": "types", "retries": "retry"}  # names in other programs


class Problem(NamedTuple):
    """What is wrong, and the key where a user can fix it."""

    at: Way
    text: str


@dataclass
class Report:
    """The problems found so far in a file. The same problem of the same key counts once, however often it is found."""

    file: str = ""
    text: str = ""
    problems: list[Problem] = field(default_factory=list)
    of_sources: list[Problem] = field(default_factory=list)  # of modules with tasks or the machine, not of the file

    def add(self, at: Way, text: str) -> None:
        problem = Problem(at, text)
        if problem not in self.problems:
            self.problems.append(problem)

    def add_of_source(self, at: Way, text: str) -> None:
        """Of a module with tasks, or of the machine: commands that only need the file go on without it."""
        self.of_sources.append(Problem(at, text))

    def sentences(self) -> list[str]:
        """`supervisor.toml:12: pools.tag.timeout: what is wrong`, in the order of the file."""
        problems = dict.fromkeys(self.problems + self.of_sources)
        known = lines(self.text) if problems else {}
        found = [(line_of(problem.at, known), problem) for problem in problems]
        found.sort(key=lambda pair: pair[0])
        return [
            f"{self.file}{f':{line}' if line else ''}: {dotted(problem.at)}: {_short(problem.text)}"
            for line, problem in found
        ]


class Checked(NamedTuple):
    """The keys of one table: the valid ones with their values, and the names of the others."""

    at: Way
    values: Mapping[str, Any]
    faulty: frozenset[str]


def checked(keys: Keys, raw: object, at: Way, report: Report) -> Checked:
    """One table: a problem leaves the other keys usable."""
    if not isinstance(raw, dict):
        report.add(at, f"{MUST_BE_TABLE}, not {shown(raw)}")
        return Checked(at, {}, frozenset(keys))
    values: dict[str, Any] = {}
    for name, value in raw.items():
        way = (*at, name)
        try:
            if name not in keys:
                home = next((f"; it belongs in {where}" for where, known in TABLES.values() if name in known), "")
                report.add(way, f"unknown key{home or like(_MEANT.get(str(name), str(name)), list(keys))}")
            elif isinstance(inside := keys[name].check, Mapping):
                inner = checked(inside, value, way, report)
                if not inner.faulty:
                    values[name] = inner.values
            else:
                values[name] = inside(value)
        except NoTimeZones as error:
            report.add_of_source(way, str(error))
        except (InvalidJob, ValueError) as error:
            report.add(way, error.problem if isinstance(error, InvalidJob) else str(error))
    return Checked(at, values, frozenset(raw.keys() - values.keys()))


def checked_by_name(keys: Keys, raw: Mapping[str, Any], name: str, report: Report) -> dict[str, Checked]:
    """The tables [name.*] of the file."""
    tables = raw.get(name, {})
    if not isinstance(tables, dict):
        report.add((name,), f"must be tables [{name}.NAME], not {shown(tables)}")
        return {}
    return {each: checked(keys, table, (name, each), report) for each, table in tables.items()}


def lines(text: str) -> dict[Way, int]:
    """The line of each key in a valid TOML text, which tomllib does not tell: the statements are read one by one."""
    found: dict[Way, int] = {}
    entries: Counter[Way] = Counter()  # of each [[array of tables]] so far
    table: Way = ()
    statement, first = "", 1
    for number, line in enumerate(text.split("\n"), 1):
        statement += f"{line}\n"
        try:
            parsed = tomllib.loads(statement)
        except ValueError:
            continue  # the rest of a list or a text is in the next lines
        if not statement.lstrip().startswith("["):
            _record(parsed, table, first, found)
        else:
            table = ()
            while parsed:
                [(name, parsed)] = parsed.items()
                table = (*table, name)
                found.setdefault(table, first)
                if isinstance(parsed, list):
                    entries[table] += 1
                    parsed = {}
                if table in entries:
                    table = (*table, entries[table] - 1)
                found.setdefault(table, first)
        statement, first = "", number + 1
    return found


def _record(value: object, at: Way, line: int, found: dict[Way, int]) -> None:
    found.setdefault(at, line)
    for key, inner in value.items() if isinstance(value, dict) else ():
        _record(inner, (*at, key), line, found)


def line_of(at: Way, known: Mapping[Way, int]) -> int:
    """The line of a key, or that of the nearest table around it; 0 if there is none."""
    return next((known[at[:length]] for length in range(len(at), 0, -1) if at[:length] in known), 0)


def dotted(key: Way) -> str:
    """A key as TOML writes it: `pools."my.pool".timeout`; entries of lists count from 0: `types[1]`."""
    text = ""
    for part in key:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else _quoted(part))
    return text


def _quoted(part: str) -> str:
    return '"' + repr(part)[1:-1] + '"'


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
