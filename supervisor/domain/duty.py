"""A duty of the maintainer: its name, when it runs, what it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import NamedTuple


class Needs(IntEnum):
    """What a duty depends on. Each of these includes those above it."""

    NOTHING = 0
    FILE = 1  # the database exists
    WRITING = 2  # and can be written


class Result(NamedTuple):
    """The result of one run: how many things were `done`. `news`: something has changed that other duties should
    process; `problem` describes what failed although the rest was done; `more`: the run reached its limit, and there is
    more to do.
    """

    done: int = 0
    news: bool = False
    problem: str = ""
    more: bool = False


def moved(jobs: int, *, problem: str = "", more: bool = False) -> Result:
    """Jobs were moved, so other duties may have something to do."""
    return Result(jobs, jobs > 0, problem, more)


class Duty(ABC):
    """Each run is bounded in rows and time. When it runs next is the scheduler's business.

    `every` is the longest time between two runs, in seconds; `rest` the shortest while the database keeps changing
    (None: changes do not matter to it). Results of a `quiet` duty are not logged.
    """

    name: str
    every: float
    rest: float | None = None
    needs: Needs = Needs.FILE
    quiet: bool = False

    def next_at(self, now: float) -> float | None:
        """A time at which it must run; None: no particular time. Both are Unix seconds."""
        return None

    @abstractmethod
    def run(self, now: float) -> Result:
        """`now` is Unix seconds. May raise any exception: it affects no other duty."""
