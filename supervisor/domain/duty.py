"""One duty of the maintainer: what it is called, when it wants to run, what it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum


class Needs(IntEnum):
    """What a duty cannot do without. Each of these includes those above it."""

    NOTHING = 0
    FILE = 1  # the database is there
    WRITING = 2  # and nobody keeps us from writing


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What one run has done. `problem` says what of it failed while the rest was done; `more` that it stopped at its
    bound and has more to do.
    """

    problem: str = ""
    more: bool = False

    @property
    def news(self) -> bool:
        """Whether there is something new for the other duties to look at."""
        return False


class Duty(ABC):
    """Bounded in rows and time. It remembers nothing about when it runs: the scheduler does.

    `every` is how many seconds may pass between two runs, `rest` how many must when the database keeps changing;
    None: changes do not concern it. Results of a `quiet` one are not logged.
    """

    name: str
    every: float
    rest: float | None = None
    needs: Needs = Needs.FILE
    quiet: bool = False

    def next_at(self, now: float) -> float | None:
        """When it must run, whatever else happens; None: no certain time. Both are Unix seconds."""
        return None

    def on_change(self) -> float | None:
        """How many seconds after its last run a change makes it run again; None: it does not concern it."""
        return self.rest

    @abstractmethod
    def run(self, now: float) -> Result:
        """`now` is Unix seconds. May raise anything: that costs nobody but this duty."""
