"""A configuration file checked key by key, and every problem put into words: one readable line each."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.config.checks import Entries, Keys, Tables, Way, shown
from supervisor.config.settings import HOMES, homes
from supervisor.domain.errors import InvalidJob
from supervisor.domain.schedule import NoTimeZones
from supervisor.domain.text import like

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 300  # characters of one problem's text; a line should be quick to read


class Problem(NamedTuple):
    """What is wrong, and the key where a user can fix it. `of_source`: of a module with tasks or of the machine."""

    at: Way
    text: str
    of_source: bool = False


@dataclass(eq=False, repr=False)
class Report:
    """The problems found so far in a file. The same problem of the same key counts once, however often it is found."""

    file: str = ""
    text: str = ""
    found: dict[Problem, None] = field(default_factory=dict)

    def add(self, at: Way, text: str, *, of_source: bool = False) -> None:
        """Commands that only need the file go on without what is `of_source`."""
        self.found[Problem(at, text, of_source)] = None

    @property
    def problems(self) -> list[Problem]:
        """Of the file itself."""
        return [problem for problem in self.found if not problem.of_source]

    @property
    def of_sources(self) -> list[Problem]:
        return [problem for problem in self.found if problem.of_source]

    def has(self, at: Way) -> bool:
        """Whether there is a problem of this key, or inside it."""
        return any(problem.at[: len(at)] == at for problem in self.found)

    def sentences(self) -> list[str]:
        """`supervisor.toml:12: pools.tag.timeout: what is wrong`, in the order of the file."""
        known = lines(self.text) if self.found else {}
        found = sorted(((line_of(problem.at, known), problem) for problem in self.found), key=lambda pair: pair[0])
        return [
            f"{self.file}{f':{line}' if line else ''}: {dotted(problem.at)}: {_short(problem.text)}"
            for line, problem in found
        ]


def checked(keys: Keys, raw: object, at: Way, report: Report) -> dict[str, Any]:
    """The valid values of one table by their keys: a problem leaves the others usable."""
    if not isinstance(raw, dict):
        report.add(at, f"must be a table, not {shown(raw)}")
        return {}
    values: dict[str, Any] = {}
    for name, value in raw.items():
        way = (*at, name)
        if name not in keys:
            places = (*homes(keys), *HOMES.items())  # the nearest first
            home = next((f"; it belongs in {where}" for where, known in places if name in known), "")
            report.add(way, f"unknown key{home or like(name, list(keys))}")
            continue
        kind = keys[name].check
        try:
            if isinstance(kind, Mapping):
                values[name] = checked(kind, value, way, report)
            elif isinstance(kind, Tables):
                values[name] = _by_name(kind, value, way, report)
            elif isinstance(kind, Entries):
                values[name] = _in_order(kind, value, way, report)
            else:
                values[name] = kind(value)
        except NoTimeZones as error:
            report.add(way, str(error), of_source=True)
        except (InvalidJob, ValueError) as error:
            report.add(way, error.problem if isinstance(error, InvalidJob) else str(error))
    return values


def _by_name(tables: Tables, raw: object, at: Way, report: Report) -> dict[str, dict[str, Any]]:
    if not isinstance(raw, dict):
        raise ValueError(f"must be tables [{dotted(at)}.NAME], not {shown(raw)}")
    for name in raw:
        tables.name(name)
    found = {name: checked(tables.keys, table, (*at, name), report) for name, table in raw.items()}
    return {name: values for name, values in found.items() if isinstance(raw[name], dict)}


def _in_order(entries: Entries, raw: object, at: Way, report: Report) -> list[tuple[Way, dict[str, Any]]]:
    """The entries, each with its place. One without any key has no effect."""
    if not isinstance(raw, list):
        raise ValueError(f"must be tables [[{at[0]}]], not {shown(raw)}")
    found = [
        ((*at, number), checked(entries.keys, entry, (*at, number), report))
        for number, entry in enumerate(raw)
        if entry != {}
    ]
    for way, values in found:
        for key in entries.required:
            if key not in values and not report.has((*way, key)):
                report.add(way, f"`{key}` is missing")
    return found


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
            text += ("." if text else "") + (part if _BARE.fullmatch(part) else '"' + repr(part)[1:-1] + '"')
    return text


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
