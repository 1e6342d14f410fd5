"""Texts from other sources, shortened for readers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

LONGEST = 2000  # characters of a message
NAME = 200  # characters of a name from a row; valid names have 100 at most
_MOST_TOLD = 5  # jobs that a message names


def is_number(text: str) -> bool:
    """Whether it is decimal digits alone: `int` also takes digits of other scripts, blanks and underscores."""
    return text.isascii() and text.isdecimal()


def text_of(value: object, limit: int = NAME) -> str:
    """A text of bounded length, from a row or a supervisor's status that any program may have written."""
    text = value[: 4 * limit].decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


def shortened(text: str, most: int = LONGEST) -> str:
    """The text, or its beginning and the number of missing characters."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most} more characters)"


def final(text: str | bytes | None) -> str:
    """A log as a terminal finally shows it: a rewritten line, such as a progress bar, keeps its last state only."""
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text or ""
    return "\n".join(part.rstrip("\r").rpartition("\r")[2] for part in text.rstrip().split("\n"))


def counted(number: int, one: str, more: str = "") -> str:
    """`1 job`, `37 jobs`; `more` is the plural if it is not `one` with an s."""
    return f"{number} {one if number == 1 else more or one + 's'}"


def pending_again(jobs: int, skipped: int, duplicates: int) -> str:
    """The result of a retry of many jobs."""
    held = f", {duplicates} not retried because unfinished jobs have their unique keys" if duplicates else ""
    return counted(jobs, "job") + " pending again" + (f", {skipped} skipped" if skipped else "") + held


def not_retried(jobs: Sequence[int], changed: int, duplicates: Mapping[int, int]) -> str:
    """Why some of these jobs were not retried. `duplicates` are the unfinished jobs that have the keys of some."""
    if len(jobs) == 1:
        why = "the unfinished job {} has the same unique key" if duplicates else "its state has just changed"
        return f"job {jobs[0]} was not retried: {why.format(*duplicates.values())}"
    told = [f"the unfinished job {other} has the unique key of job {job}" for job, other in duplicates.items()]
    if len(told) > _MOST_TOLD:
        told[_MOST_TOLD:] = [f"unfinished jobs have those of {len(told) - _MOST_TOLD} more"]
    missing = len(jobs) - changed
    if missing > len(duplicates):
        told.append(f"the state of {missing - len(duplicates)} has just changed")
    return f"{missing} of {len(jobs)} jobs were not retried: {', '.join(told)}"


def untaken(type_: str, known: Iterable[str]) -> str:
    """That no pool takes a type, with the one of these that is probably meant."""
    return f"no pool takes the type {type_}{like(type_, sorted(known))}"


def no_pool(name: str, pools: Iterable[str]) -> str:
    """That there is no pool with this name, with those that there are."""
    known = list(pools)
    return f"there is no pool {name!r}; there are {', '.join(known)}{like(name, known)}"


def like(name: str, known: Iterable[str]) -> str:
    """`; did you mean tag?`, for the end of a sentence, if one of these is nearly the same; otherwise empty."""
    import difflib  # imported here: only needed for misspelt names

    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def refuse_constant(constant: str) -> NoReturn:
    """For `json.loads(text, parse_constant=…)`, which would take NaN and Infinity for JSON. Raises ValueError."""
    raise ValueError(f"{constant} is not part of JSON")
