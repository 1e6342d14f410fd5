"""A thread that reads the database once a second and performs the requested actions.

If the database is busy or gone, only this thread waits; keys still work.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from supervisor.cli.top.view import Action
from supervisor.domain.errors import QueueError, StoreBusy, StoreError
from supervisor.domain.history import HOUR, MINUTE, Minute
from supervisor.ops import commands
from supervisor.ops.run_logs import end_of
from supervisor.ops.status import Costs, gather
from supervisor.ops.views import Overview
from supervisor.store.base import Engine, Operations

EVERY = 1.0  # seconds between two reads
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


class Poller:
    """`seen` is replaced as a whole, and a byte is written to `wake` each time. The log is that of `job`."""

    def __init__(self, engine: Engine, wake: int) -> None:
        self.seen = Seen()
        self.job: int | None = None
        self._engine = engine
        self._wake = wake
        self._wanted: queue.SimpleQueue[Action | None] = queue.SimpleQueue()  # None: stop
        self._operations: Operations | None = None
        self._costs = Costs()
        self._thread = threading.Thread(target=self._work, daemon=True, name="poller")
        self._thread.start()

    def ask(self, action: Action) -> None:
        self._wanted.put(action)

    def stop(self) -> None:
        """Does not wait long: reading a busy database may take seconds, and writes nothing."""
        self._wanted.put(None)
        self._thread.join(0.2)

    def _work(self) -> None:
        while True:
            self._publish(self._look())
            with suppress(queue.Empty):
                action = self._wanted.get(timeout=EVERY)
                if action is None:
                    return self._forget()
                self._publish(self._perform(action))

    def _publish(self, seen: Seen) -> None:
        self.seen = seen
        os.write(self._wake, b"\0")

    def _look(self) -> Seen:
        try:
            operations = self._open()
            overview = gather(self._engine, operations, costs=self._costs)
            minutes = operations.history.minutes(overview.time - HOUR - MINUTE)
            log = None if (job := self.job) is None else (job, end_of(operations, job) or "")
            known = replace(self.seen, overview=overview, failures=_failures(operations), minutes=minutes, log=log)
            return replace(known, at=time.monotonic(), trouble="")
        except (StoreError, OSError) as error:
            return replace(self.seen, trouble=self._told(error))

    def _perform(self, action: Action) -> Seen:
        try:
            operations = self._open()
            answer = action.perform(operations, operations.statistics.now(), *action.given)
        except (QueueError, OSError) as error:
            answer = f"not done: {self._told(error)}"
        return replace(self.seen, answer=answer, answers=self.seen.answers + 1)

    def _told(self, error: Exception) -> str:
        """The error in one line, with the file's name instead of its path."""
        if isinstance(error, (StoreError, OSError)) and not isinstance(error, StoreBusy):
            self._forget()  # the file may have been replaced
        file = self._engine.database.file
        return str(error) if file is None else str(error).replace(str(file), file.name)

    def _open(self) -> Operations:
        if self._operations is None:
            self._operations, self._costs = self._engine.operations(), Costs()
        self._operations.check()  # an open file that was moved away can still be read
        return self._operations

    def _forget(self) -> None:
        operations, self._operations = self._operations, None
        if operations is not None:
            operations.close()


def _failures(operations: Operations) -> dict[str, str]:
    """The latest message of each type."""
    found = [
        job
        for status in commands.UNSUCCESSFUL
        for job in operations.jobs.latest(status=status, type=None, before=None, limit=RECENT)
    ]
    found.sort(key=lambda job: job.completed_at or 0.0)
    return {job.type: job.last_error for job in found if job.last_error}
