"""Every problem of a configuration file, collected and put into words: one readable line each."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from supervisor.config.lines import Key, Lines
from supervisor.domain.text import like

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST = 300  # characters of one problem's text; a line should be quick to read

_SYNONYMS = {"pool": "pools", "processes": "workers", "queue": "types", "queues": "types", "retries": "retry"}
"""The names that other job queues use for our keys."""


class Problem(NamedTuple):
    """What is wrong, and the key where a user can fix it."""

    at: Key
    text: str


@dataclass
class Report:
    """The problems found so far. The same problem of the same key counts once, however often it is found.

    `homes` says in which table a key belongs, for keys found in another table.
    """

    homes: Mapping[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    of_sources: list[Problem] = field(default_factory=list)  # of modules with tasks or the machine, not of the file

    def add(self, at: Key, text: str) -> None:
        problem = Problem(at, text)
        if problem not in self.problems:
            self.problems.append(problem)

    def add_of_source(self, at: Key, text: str) -> None:
        """Of a module with tasks, or of the machine: commands that only need the file go on without it."""
        self.of_sources.append(Problem(at, text))

    def add_unknown(self, at: Key, known: Iterable[str], otherwise: str = "") -> None:
        """A key that does not exist there, with the one that was probably meant, or a hint."""
        name, known = str(at[-1]), list(known)
        meant = _SYNONYMS.get(name)
        if name in self.homes:
            hint = f"; it belongs in {self.homes[name]}"
        elif meant in known:
            hint = f"; did you mean {meant}?"
        else:
            hint = like(name, known) or (f"; {otherwise}" if otherwise else "")
        self.add(at, f"unknown key{hint}")

    def sentences(self, file: str, text: str) -> list[str]:
        """`supervisor.toml:12: pools.tag.timeout: what is wrong`, in the order of the file."""
        problems = dict.fromkeys(self.problems + self.of_sources)
        lines = Lines(text if problems else "")
        found = [(lines.of(problem.at) or 0, problem) for problem in problems]
        found.sort(key=lambda pair: pair[0])
        return [
            f"{file}{f':{line}' if line else ''}: {dotted(problem.at)}: {_short(problem.text)}"
            for line, problem in found
        ]


def shown(value: object) -> str:
    """A value from the file, short enough for a line. A text is shown in quotes."""
    try:
        return {True: "true", False: "false"}[value] if isinstance(value, bool) else _REPR.repr(value)
    except (ValueError, RecursionError):  # Python does not convert numbers with thousands of digits
        return "such a large value"


def dotted(key: Key) -> str:
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


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_REPR.maxdict = _REPR.maxlist = 3
_REPR.maxlevel = 2
