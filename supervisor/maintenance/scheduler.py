"""Decides when each duty runs, and isolates their failures, and those of a duty's items. It knows no process and no
engine.

The idea of services that fail independently is River's (internal/maintenance/queue_maintainer.go).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from math import inf
from typing import Generic, NamedTuple, TypeVar

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreBusy, StoreError, StoreGone, StoreUnavailable
from supervisor.domain.polling import backoff
from supervisor.telemetry import events

FIRST_PAUSE = 0.1  # seconds until a duty that has failed is tried again, doubled with each failure in a row
LONGEST_PAUSE = 5.0
LONGEST_BUSY_PAUSE = 1.0  # the attempt itself has waited for the lock already
EARLY = 0.2  # share of its interval or rest, and seconds at most, by which a run may come early to share a wake-up
SLOW = 2.0  # seconds: longer runs are logged as warnings
MOST_TEXT = 300  # characters of an error that are reported


class Failing(NamedTuple):
    """A duty that fails: since when (Unix seconds), and its latest error."""

    since: float
    error: str


@dataclass(slots=True, eq=False)
class _Entry:
    """The state of one duty. Times are monotonic seconds. Only a run that returns changes `seen` and `due`."""

    duty: Duty
    timed: bool  # whether it has times of its own
    due: float = 0.0
    seen: int = -1  # the changes that it has processed: at the start everything is new
    succeeded_at: float = -inf  # the start of its last run without an error
    tried: float = -inf
    not_before: float = 0.0
    failures: int = 0
    failing: Failing | None = None
    unavailable: StoreUnavailable | None = None


class Scheduler:
    """Runs duties one after the other. A change is marked as processed only when the duty has run without an error.

    An error affects that duty alone: it is tried again after a pause of its own. There are two exceptions: while the
    database is gone, nothing runs that needs it; and while another program keeps it from being written, only one duty
    waits for that before all others that do not write have had their turn.

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
        self._entries = [_Entry(duty, type(duty).next_at is not Duty.next_at) for duty in duties]
        self._by_duty = {entry.duty: entry for entry in self._entries}
        self._between = between
        self._failed = failed
        self._steady = steady
        self._wall = wall
        self.changes = 0  # that it was told of
        self._gone: StoreGone | None = None
        self._busy_until = 0.0
        self._log = events(process="maintainer")

    def changed(self) -> None:
        """Something was committed, or may have been."""
        self.changes += 1

    def hasten(self, duty: Duty) -> None:
        """Run this one at the next opportunity."""
        self._by_duty[duty].due = 0.0

    @property
    def failing(self) -> dict[str, Failing]:
        """The failing duties, by name."""
        return {entry.duty.name: entry.failing for entry in self._entries if entry.failing is not None}

    @property
    def trouble(self) -> StoreUnavailable | None:
        """Why the database as a whole cannot be used; None if it can."""
        return self._gone or next((e.unavailable for e in self._entries if e.unavailable is not None), None)

    def may_run(self, duty: Duty) -> bool:
        """Whether it is one of these, and nothing keeps it from running."""
        entry = self._by_duty.get(duty)
        return entry is not None and self._held_up_until(entry) <= self._steady()

    def next_at(self) -> float:
        """When the next duty is due, in monotonic seconds."""
        at, now = self._steady(), self._wall()
        return min((self._due(entry, at, now) for entry in self._entries), default=inf)

    # Running

    def perform(self) -> None:
        """One pass: every duty whose time has come runs once, those that wait for the database last. If an interval has
        ended, those that are about to end count, too: an idle maintainer wakes up once a second, not once for each.
        """
        at, now = self._steady(), self._wall()
        ready = [entry for entry in self._entries if self._due(entry, at, now, share=1 - EARLY) <= at]
        if not ready:
            return
        if any(entry.due <= at for entry in ready):  # not for a change: after it, a worker needs the write lock
            nearly = [entry for entry in self._entries if entry.due - EARLY * min(entry.duty.every, 1.0) <= at]
            ready = [entry for entry in self._entries if entry in ready or entry in nearly]
        # In the order of the list; after them, in turn, those for which the database was unavailable.
        for entry in sorted(ready, key=lambda one: (True, one.tried) if one.unavailable else (False, 0.0)):
            self._run(entry)
        for entry in self._entries:  # those that one of these has just told of a change
            if self._has_news(entry) and entry not in ready and self._due(entry, at, now) <= at:
                self._run(entry)

    def attend(self, *duties: Duty) -> None:
        """Run those of these whose time has come, before the others are even considered."""
        for entry in filter(None, map(self._by_duty.get, duties)):
            if self._due(entry, self._steady(), self._wall()) <= self._steady():
                self._run(entry)

    def _run(self, entry: _Entry) -> None:
        if self._held_up_until(entry) > self._steady():
            return
        self._between()
        duty, news = entry.duty, self.changes
        began = entry.tried = self._steady()
        now = self._wall()
        try:
            result = duty.run(now)
        except Exception as error:
            self._note_failure(entry, error, now)
            return
        seconds = self._steady() - began
        entry.seen = news
        entry.succeeded_at = began
        entry.due = began if result.more else began + duty.every
        self._note_success(entry, result, now)
        if seconds >= SLOW:
            self._log.warning("duty_slow", duty=duty.name, seconds=round(seconds, 3), result=str(result))
        elif not duty.quiet and any(result):
            self._log.debug("duty_done", duty=duty.name, seconds=round(seconds, 6), result=str(result))
        if result.news:
            self.changed()
            entry.seen = self.changes  # not news to itself

    # Times

    def _has_news(self, entry: _Entry) -> bool:
        return self.changes > entry.seen and entry.duty.rest is not None

    def _due(self, entry: _Entry, at: float, now: float, share: float = 1.0) -> float:
        """When a duty is to run next, in monotonic seconds, after this share of its rest."""
        duty, due = entry.duty, entry.due
        if self.changes > entry.seen and duty.rest is not None:  # this is called a thousand times a second
            due = min(due, entry.succeeded_at + share * duty.rest)
        if entry.timed and (exact := duty.next_at(now)) is not None:
            due = min(due, at + max(0.0, exact - now))
        return max(due, self._held_up_until(entry))

    def _held_up_until(self, entry: _Entry) -> float:
        if self._gone is not None and entry.duty.needs >= Needs.FILE:
            return inf  # until the duty that checks the database has found it
        if self._busy_until and entry.duty.needs >= Needs.WRITING:
            return max(entry.not_before, self._busy_until)
        return entry.not_before

    # Results

    def _note_failure(self, entry: _Entry, error: Exception, now: float) -> None:
        self._failed(error)
        entry.failures += 1
        longest = LONGEST_BUSY_PAUSE if isinstance(error, StoreBusy) else LONGEST_PAUSE
        entry.due = entry.not_before = self._steady() + backoff(FIRST_PAUSE, entry.failures, longest)
        entry.unavailable = error if isinstance(error, StoreUnavailable) else None
        if isinstance(error, StoreGone):
            self._gone = error
        elif isinstance(error, StoreBusy):
            self._busy_until = self._steady() + FIRST_PAUSE
        text, before = error_text(error), entry.failing
        entry.failing = Failing(before.since if before else now, text)
        if entry.unavailable is None and (before is None or before.error != text):
            # An error of the database needs no traceback; anything else is a bug.
            is_bug = not isinstance(error, StoreError)
            self._log.error("duty_failed", duty=entry.duty.name, error=text, exc_info=is_bug)

    def _note_success(self, entry: _Entry, result: Result, now: float) -> None:
        entry.failures = 0
        entry.not_before = 0.0
        if entry.duty.needs is Needs.NOTHING:
            self._gone = None
        if entry.unavailable is not None:
            entry.unavailable = None
            self._busy_until = 0.0
            for other in self._entries:  # what kept this one from running is over, for the others too
                if other.unavailable is not None:
                    other.not_before = other.due = 0.0
        if result.problem:
            entry.failing = Failing(entry.failing.since if entry.failing else now, result.problem[:MOST_TEXT])
        elif entry.failing is not None:
            self._log.info("duty_recovered", duty=entry.duty.name, seconds=round(now - entry.failing.since, 3))
            entry.failing = None


def error_text(error: BaseException) -> str:
    """An error in one line; with the name of its class unless it is a StoreError."""
    text = " ".join(str(error).split())
    if not isinstance(error, StoreError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:MOST_TEXT]


Key = TypeVar("Key", bound=Hashable)

LONGEST_ITEM_PAUSE = 60.0  # seconds between two tries of an item that fails again and again
MOST_FAILED = 1000  # failing items remembered; with more, those that failed longest ago are tried again
ITEMS_BOUND = 2.0  # seconds that a duty spends on its items in one run
_SHOWN = 200  # characters of an error, so that several fit into one line


class _Failure(NamedTuple):
    times: int
    not_before: float
    name: str
    error: str


class Items(Generic[Key]):
    """What a duty has to do for each of many items: each fails on its own, and is tried again after a pause of its own.
    `kind` names the items in messages.
    """

    def __init__(self, kind: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._kind = kind
        self._clock = clock
        self._failures: dict[Key, _Failure] = {}
        self._log = events(process="maintainer")

    def each(
        self, keys: Iterable[Key], do: Callable[[Key], int], name: Callable[[Key], object] = str, until: float = inf
    ) -> Result:
        """Do it for each that may be tried now, until this monotonic time. The result has the sum of what `do` returns,
        and whether anything was done is news. Only StoreUnavailable is raised: then the others need not be tried.
        """
        done = 0
        for key in keys:
            if not self.ready(key):
                continue
            if self._clock() >= until:
                return Result(done, done > 0, self.problem, more=True)
            try:
                done += do(key)
            except StoreUnavailable:
                raise
            except Exception as error:
                self._note(key, str(name(key)), error)
            else:
                self._failures.pop(key, None)
        return Result(done, done > 0, self.problem)

    def ready(self, key: Key) -> bool:
        """Whether it may be tried now."""
        failure = self._failures.get(key)
        return failure is None or failure.not_before <= self._clock()

    def fails(self, key: Key) -> bool:
        return key in self._failures

    def keep(self, keys: AbstractSet[Key]) -> None:
        """Forget all but these: the others no longer exist."""
        if self._failures:
            self._failures = {key: failure for key, failure in self._failures.items() if key in keys}

    def __len__(self) -> int:
        """How many fail."""
        return len(self._failures)

    def next_try(self, now: float) -> float | None:
        """When the first failing item may be tried again; None if none fails. Both are Unix seconds."""
        if not self._failures:
            return None
        return now + max(0.0, min(failure.not_before for failure in self._failures.values()) - self._clock())

    @property
    def problem(self) -> str:
        """The failures in one line; empty if there are none."""
        if not self._failures:
            return ""
        first, others = next(iter(self._failures.values())), len(self._failures) - 1
        return f"{self._kind} {first.name}: {first.error}" + (f" (and {others} more)" if others else "")

    def _note(self, key: Key, name: str, error: Exception) -> None:
        before = self._failures.get(key)
        times = before.times + 1 if before else 1
        text = error_text(error)[:_SHOWN]
        pause = backoff(FIRST_PAUSE, times, LONGEST_ITEM_PAUSE)
        self._failures[key] = _Failure(times, self._clock() + pause, name, text)
        if len(self._failures) > MOST_FAILED:
            del self._failures[next(iter(self._failures))]
        if before is None or before.error != text:
            is_bug = not isinstance(error, StoreError)
            self._log.error("item_failed", of=self._kind, item=name, error=text, exc_info=is_bug)
