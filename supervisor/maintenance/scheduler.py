"""When each duty runs, and what becomes of the others when one fails. Knows no process, no database and no clock.

The idea of services that fail each for itself is River's (internal/maintenance/queue_maintainer.go).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, field
from math import inf
from typing import NamedTuple

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreBusy, StoreError, StoreGone, StoreUnavailable
from supervisor.telemetry import events

FIRST_PAUSE = 0.1  # seconds until a duty that has failed is tried again, doubled with each failure in a row
LONGEST_PAUSE = 5.0
LONGEST_BUSY_PAUSE = 1.0  # whoever waits for a lock has waited in the attempt already
SLOW = 2.0  # seconds: a run that takes longer is worth a warning
MOST_TEXT = 300  # characters of an error that are told


class Failing(NamedTuple):
    """A duty that fails: since when (Unix seconds), and its latest error."""

    since: float
    error: str


@dataclass(slots=True, eq=False)
class _Entry:
    """One duty's place. Times are monotonic seconds. Only a run that has returned moves `seen` and `due`."""

    duty: Duty
    due: float = 0.0
    news: int = 1  # how often it was told of a change: at the start everything is new
    seen: int = 0  # of these, those that it has looked at
    began: float = -inf  # its last run that was not in vain
    tried: float = -inf
    not_before: float = 0.0
    failures: int = 0
    failing: Failing | None = None
    unavailable: StoreUnavailable | None = field(default=None, repr=False)


class Scheduler:
    """Runs duties one after the other. What a duty was told is forgotten only when it has run without an error.

    An error costs that duty alone: it is tried again after a pause of its own. Two things are nobody's own: while the
    file is gone nothing runs that needs it, and when somebody else keeps the database from being written, only one
    duty waits for it before all others that do not write have had their turn.

    `between` is called before each run, `failed` with each error. `steady` and `wall` are the clocks.
    """

    def __init__(
        self,
        duties: Sequence[Duty],
        *,
        between: Callable[[], None] = lambda: None,
        failed: Callable[[Exception], None] = lambda _: None,
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._entries = [_Entry(duty) for duty in duties]
        self._between = between
        self._failed = failed
        self._steady = steady
        self._wall = wall
        self._gone: StoreGone | None = None
        self._busy_until = 0.0
        self._log = events(process="maintainer")

    # What it is told

    def changed(self) -> None:
        """Something was committed, or may have been."""
        for entry in self._entries:
            entry.news += 1

    def hasten(self, duty: Duty) -> None:
        """Run this one at the next opportunity."""
        self._entry(duty).due = 0.0

    # What it tells

    @property
    def failing(self) -> dict[str, Failing]:
        """Every duty that fails just now, by its name."""
        return {entry.duty.name: entry.failing for entry in self._entries if entry.failing is not None}

    @property
    def trouble(self) -> StoreUnavailable | None:
        """Why the database as a whole cannot be used; None if it can."""
        return self._gone or next((e.unavailable for e in self._entries if e.unavailable is not None), None)

    def may_run(self, duty: Duty) -> bool:
        """Whether nothing holds this one up."""
        return self._held_up_until(self._entry(duty)) <= self._steady()

    def next_at(self) -> float:
        """When the next duty is due, in monotonic seconds."""
        at, now = self._steady(), self._wall()
        return min((self._due(entry, at, now) for entry in self._entries), default=inf)

    # The work

    def perform(self) -> None:
        """One pass: every duty whose time has come runs once, those that wait for the database last."""
        at, now = self._steady(), self._wall()
        ready = [entry for entry in self._entries if self._due(entry, at, now) <= at]
        for entry in sorted(ready, key=_by_turn):
            self._run_unless_held_up(entry)
        waiting = {*self._entries}.difference(ready)
        for entry in self._entries:  # those that have been told something by one of these just now
            if entry in waiting and entry.news > entry.seen and self._due(entry, at, now) <= at:
                self._run_unless_held_up(entry)

    def attend(self, *duties: Duty) -> None:
        """Run these at once, if they were hastened or told something, before anybody else is so much as asked."""
        for entry in map(self._entry, duties):
            if entry.due == 0.0 or entry.news > entry.seen:
                self._run_unless_held_up(entry)

    def finish(self, duty: Duty) -> None:
        """Run this one at once, whenever it is due: nothing comes after."""
        self._run(self._entry(duty))

    def _run_unless_held_up(self, entry: _Entry) -> None:
        if self._held_up_until(entry) <= self._steady():
            self._run(entry)

    def _run(self, entry: _Entry) -> None:
        self._between()
        duty, news = entry.duty, entry.news
        began = entry.tried = self._steady()
        now = self._wall()
        try:
            result = duty.run(now)
        except Exception as error:
            self._note_failure(entry, error, now)
            return
        seconds = self._steady() - began
        entry.seen = news
        entry.began = began
        entry.due = began if result.more else began + duty.every
        self._note_success(entry, result, now)
        self._tell(duty, result, seconds)
        if result.news:
            self.changed()
            entry.seen += 1  # it knows its own news

    # When

    def _due(self, entry: _Entry, at: float, now: float) -> float:
        """When a duty is to run next, in monotonic seconds."""
        due = entry.due
        rest = entry.duty.on_change()
        if rest is not None and entry.news > entry.seen:
            due = min(due, entry.began + rest)
        exact = entry.duty.next_at(now)
        if exact is not None:
            due = min(due, at + max(0.0, exact - now))
        return max(due, self._held_up_until(entry))

    def _held_up_until(self, entry: _Entry) -> float:
        held_up = entry.not_before
        if self._gone is not None and entry.duty.needs >= Needs.FILE:
            return inf  # until whoever looks after the file has found it
        if entry.duty.needs >= Needs.WRITING:
            held_up = max(held_up, self._busy_until)
        return held_up

    # What comes of it

    def _note_failure(self, entry: _Entry, error: Exception, now: float) -> None:
        self._failed(error)
        entry.failures += 1
        longest = LONGEST_BUSY_PAUSE if isinstance(error, StoreBusy) else LONGEST_PAUSE
        pause = min(FIRST_PAUSE * 2.0 ** min(entry.failures - 1, 10), longest)
        entry.not_before = self._steady() + pause
        entry.due = entry.not_before
        before = self.trouble
        entry.unavailable = error if isinstance(error, StoreUnavailable) else None
        if isinstance(error, StoreGone):
            self._gone = error
        elif isinstance(error, StoreBusy):
            self._busy_until = self._steady() + FIRST_PAUSE
        if before is None and self.trouble is not None:
            self._log.error("store_failed", error=str(error), duty=entry.duty.name)
        news = self._fails(entry, error_text(error), now)
        if news and entry.unavailable is None:
            # What the database says speaks for itself; anything else is a bug, of which the place must be known.
            self._log.error(
                "duty_failed", duty=entry.duty.name, error=error_text(error), exc_info=not isinstance(error, StoreError)
            )

    def _note_success(self, entry: _Entry, result: Result, now: float) -> None:
        before = self.trouble
        entry.failures = 0
        entry.not_before = 0.0
        if entry.duty.needs is Needs.NOTHING:
            self._gone = None
        if entry.unavailable is not None:
            entry.unavailable = None
            self._busy_until = 0.0
            for other in self._entries:  # what has hindered this one no longer does, so nor need it the others
                if other.unavailable is not None:
                    other.not_before = other.due = 0.0
        if before is not None and self.trouble is None:
            self._log.info("store_recovered")
        if result.problem:
            self._fails(entry, result.problem, now)
        elif entry.failing is not None:
            self._log.info("duty_recovered", duty=entry.duty.name, seconds=round(now - entry.failing.since, 3))
            entry.failing = None

    def _fails(self, entry: _Entry, error: str, now: float) -> bool:
        """Whether it is the first time, or for another reason than before."""
        before = entry.failing
        entry.failing = Failing(before.since if before else now, error[:MOST_TEXT])
        return before is None or before.error != entry.failing.error

    def _tell(self, duty: Duty, result: Result, seconds: float) -> None:
        if seconds >= SLOW:
            self._log.warning("duty_slow", duty=duty.name, seconds=round(seconds, 3), result=str(result))
        elif not duty.quiet and any(astuple(result)):
            self._log.debug("duty_done", duty=duty.name, seconds=round(seconds, 6), result=str(result))

    def _entry(self, duty: Duty) -> _Entry:
        return next(entry for entry in self._entries if entry.duty is duty)


def _by_turn(entry: _Entry) -> tuple[bool, float]:
    """In the order in which they are listed; those that the database has failed, after them, take turns."""
    hindered = entry.unavailable is not None
    return hindered, entry.tried if hindered else 0.0


def error_text(error: BaseException) -> str:
    """An error in one line for people; of one that is not the store's the class is told, too."""
    text = " ".join(str(error).split())
    if not isinstance(error, StoreError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:MOST_TEXT]
