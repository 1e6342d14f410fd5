"""A thread that reads the database once a second and performs the requested actions.

If the database is busy or gone, only this thread waits; keys still work.
"""

from __future__ import annotations

import enum
import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from supervisor.cli.top.actions import Action
from supervisor.domain.errors import QueueError, StoreBusy, StoreError, StoreGone
from supervisor.domain.history import HOUR, MINUTE, Minute
from supervisor.ops import commands
from supervisor.ops.run_logs import end_of
from supervisor.ops.status import Costs, gather
from supervisor.ops.views import Overview
from supervisor.store.base import Engine, Operations

EVERY = 1.0  # seconds between two reads
_HISTORY_EVERY = 10.0  # seconds between two reads of the history, which has a row for each minute
RECENT = 50  # unsuccessful jobs of each kind that are looked through for the latest failures


@dataclass(frozen=True, slots=True)
class Seen:
    """What is known: the last successful read, its time (monotonic seconds), and why newer reads fail.

    `failures` is the latest message of each type, from `RECENT` unsuccessful jobs. `answer` is the result of the last
    action; `answers` counts the actions. `minutes` are the last hour, `log` a job and what it has printed.
    """

    overview: Overview | None = None
    failures: Mapping[str, str] = field(default_factory=dict)
    at: float = 0.0
    trouble: str = ""
    answer: str = ""
    answers: int = 0
    minutes: Sequence[Minute] = ()
    log: tuple[int, str] | None = None


class _Look(enum.Enum):
    """Not an action: only look again at once."""

    NOW = 1


class Poller:
    """`seen` is replaced as a whole, and a byte is written to `wake` each time."""

    def __init__(self, engine: Engine, wake: int) -> None:
        self.seen = Seen()
        self._engine = engine
        self._wake = wake
        self._actions: queue.SimpleQueue[Action | _Look | None] = queue.SimpleQueue()
        self._operations: Operations | None = None
        self._costs = Costs()
        self._job: int | None = None
        self._next_history = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True, name="poller")

    def start(self) -> None:
        self._thread.start()

    def ask(self, action: Action) -> None:
        self._actions.put(action)

    def follow(self, job: int | None) -> None:
        """Read the log of this job from now on."""
        if job != self._job:
            self._job = job
            self._actions.put(_Look.NOW)

    def stop(self) -> None:
        """Does not wait long: reading a busy database may take seconds, and writes nothing."""
        self._actions.put(None)
        self._thread.join(0.2)

    def _work(self) -> None:
        while True:
            self._look()
            try:
                action = self._actions.get(timeout=EVERY)
            except queue.Empty:
                continue
            if action is None:
                self._forget()
                return
            if not isinstance(action, _Look):
                self._perform(action)

    def _look(self) -> None:
        try:
            operations = self._open()
            overview = gather(self._engine, operations, costs=self._costs)
            failures = _failures(operations)
            minutes = self._minutes(operations, overview.time)
            log = None if (job := self._job) is None else (job, end_of(operations, job) or "")
        except (StoreError, OSError) as error:
            self._failed(error)
        else:
            seen = replace(self.seen, overview=overview, failures=failures, minutes=minutes, log=log)
            self._publish(replace(seen, at=time.monotonic(), trouble=""))

    def _minutes(self, operations: Operations, now: float) -> Sequence[Minute]:
        if time.monotonic() < self._next_history:
            return self.seen.minutes
        minutes = operations.history.minutes(now - HOUR - MINUTE)
        self._next_history = time.monotonic() + _HISTORY_EVERY
        return minutes

    def _perform(self, action: Action) -> None:
        try:
            operations = self._open()
            answer = action.perform(operations, operations.statistics.now())
        except (QueueError, OSError) as error:
            if isinstance(error, (StoreError, OSError)):
                self._failed(error)
            answer = f"not done: {self._brief(error)}"
        self._publish(replace(self.seen, answer=answer, answers=self.seen.answers + 1))

    def _failed(self, error: Exception) -> None:
        if not isinstance(error, StoreBusy):
            self._forget()  # the file may have been replaced
        self._publish(replace(self.seen, trouble=self._brief(error)))

    def _brief(self, error: Exception) -> str:
        """The error in one line, with the file's name instead of its path."""
        path = str(self._engine.database.file or "")
        return str(error).replace(path, path.rpartition("/")[2]) if path else str(error)

    def _open(self) -> Operations:
        """Open the file that has the database's name now: an open file that was moved away can still be read."""
        if self._operations is not None:
            try:
                self._operations.check()
            except StoreGone:
                self._forget()
        if self._operations is None:
            self._operations = self._engine.operations()
            self._costs = Costs()  # they may hold results from another file
        return self._operations

    def _forget(self) -> None:
        operations, self._operations = self._operations, None
        if operations is not None:
            operations.close()

    def _publish(self, seen: Seen) -> None:
        self.seen = seen
        os.write(self._wake, b"\0")


def _failures(operations: Operations) -> dict[str, str]:
    """The latest message of each type."""
    found = [
        job
        for status in commands.UNSUCCESSFUL
        for job in operations.jobs.latest(status=status, type=None, before=None, limit=RECENT)
    ]
    found.sort(key=lambda job: job.completed_at or 0.0)
    return {job.type: job.last_error for job in found if job.last_error}
