"""The result of one check of the doctor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "note", "warning", "fault"]


@dataclass(frozen=True, slots=True)
class Finding:
    """`fact` is what was found, `advice` what to do about it. A fault prevents the supervisor from working properly."""

    level: Level
    about: str
    fact: str
    advice: str = ""


def good(about: str, fact: str) -> Finding:
    return Finding("ok", about, fact)


def note(about: str, fact: str, advice: str = "") -> Finding:
    return Finding("note", about, fact, advice)


def warning(about: str, fact: str, advice: str) -> Finding:
    return Finding("warning", about, fact, advice)


def fault(about: str, fact: str, advice: str) -> Finding:
    return Finding("fault", about, fact, advice)
