"""Records what ran, by minute: finished jobs and queue sizes. Minutes that are over a day old become hours."""

from __future__ import annotations

import json
from pathlib import Path

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.history import KEPT, MINUTE, hour_of, minute_of, minutes_begin, recorded, sums_by_type
from supervisor.store.base import Backlog, History
from supervisor.system import counters


class HistoryRecorder(Duty):
    """Writes a minute when it is over, unless nothing happened in it and nothing waits.

    The state of the counters is stored with the minutes, in one transaction. So no matter who dies, a minute is
    counted once: the next maintainer continues from the stored state.

    Once an hour it deletes what is too old, and rolls up minutes: an hour in each run, in a transaction of its own.
    """

    name = "history"
    every = MINUTE
    needs = Needs.WRITING

    def __init__(self, history: History, backlog: Backlog, supervisor: str, path: Path) -> None:
        self._history = history
        self._backlog = backlog
        self._supervisor = supervisor
        self._path = path
        self._minute: float | None = None
        self._tidied: float | None = None  # the hour in which that was done

    def next_at(self, now: float) -> float | None:
        return None if self._minute is None else self._minute + MINUTE

    def run(self, now: float) -> Result:
        """Write the minute before this one, if that has not been done. `now` is Unix seconds."""
        minute = minute_of(now)
        written = 0
        if self._minute is not None and minute > self._minute:
            written = self._write(minute - MINUTE, now)
        self._minute = minute  # also at the start, or after the clock was set back
        return self._tidy(now, written)

    def close(self, now: float) -> Result:
        """Write the current minute as far as it has come: no later run will."""
        return Result(self._write(minute_of(now), now))

    def _tidy(self, now: float, written: int) -> Result:
        """The minute is written: an error here does not write it again."""
        hour = hour_of(now)
        if hour == self._tidied:
            return Result(written)
        self._history.forget(now - KEPT)
        rolled_up = self._history.roll_up(minutes_begin(now))
        if not rolled_up:
            self._tidied = hour
        return Result(written, more=rolled_up > 0)

    def _write(self, minute: float, now: float) -> int:
        before = self._history.counted(self._supervisor)
        counted = sums_by_type(json.loads(before))
        sums = sums_by_type(counters.sums(self._path))
        minutes = recorded(minute, sums, counted, self._backlog.queue_sizes(now))
        after = json.dumps({name: list(total) for name, total in sorted(sums.items())})
        if not minutes or not self._history.record(self._supervisor, before, after, minutes):
            return 0
        return len(minutes)
