"""A worker's stderr: passed on to the log with a rate limit; its tail is kept for errors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import inf

from supervisor.supervision.exit_reason import NO_RUN
from supervisor.system.outlet import Outlet
from supervisor.system.signals import Reactor
from supervisor.system.slot import Work
from supervisor.telemetry import events
from supervisor.template.worker_start import BYTES_A_SECOND

TAIL_BYTES = 8192  # kept for job_errors
_AT_ONCE = 1 << 18  # bytes per read
_PAUSE = 0.01  # seconds between two reads during a flood


class PassedOn:
    """What goes on to the log: not more than BYTES_A_SECOND."""

    def __init__(self, worker: str, log: Outlet) -> None:
        self.dropped = 0  # bytes, since that was last reported
        self._worker = worker
        self._log = log
        self._second = 0.0  # when the current second began
        self._passed = 0
        self._mid_line = False  # what was passed on last has no line break at its end

    def put(self, data: bytes, now: float) -> None:
        if now - self._second >= 1.0:
            self.tell_dropped()
            self._second, self._passed = now, 0
        passed = data[: BYTES_A_SECOND - self._passed]
        self._passed += len(passed)
        self.dropped += len(data) - len(passed)
        if passed:
            self._log.put(passed)
            self._mid_line = not passed.endswith(b"\n")

    def tell_dropped(self, now: float = inf) -> None:
        """Log dropped output, one line a second."""
        if self.dropped and now - self._second >= 1.0:
            if self._mid_line:
                self._log.put(b"\n")
                self._mid_line = False
            events(process="supervisor").warning("output_dropped", worker=self._worker, bytes=self.dropped)
            self.dropped = 0


class WorkerOutput:
    """The reading end of one worker's stderr. Nothing here blocks: a flood is read in portions, with pauses in which
    its writer waits. Times are monotonic seconds.

    `tail` is the end of what the current run in `work` has written: neither what was read before that run was seen,
    nor what was unread when it began.
    """

    def __init__(self, descriptor: int, worker: str, log: Outlet, work: Work) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.passed_on = PassedOn(worker, log)
        self.resume_at: float | None = None  # when to read a flood again: there was more than one portion
        self.tail = b""
        self._work = work
        self._run = NO_RUN  # the latest run seen
        self._earlier = 0  # bytes still to come that are not of this run

    def _see_run(self) -> None:
        run = self._work.run
        if run not in (NO_RUN, self._run):
            self._run, self.tail, self._earlier = run, b"", self._work.earlier_output

    def read(self, now: float) -> bool:
        """Read up to one portion. Returns False if no process can write any more."""
        self.resume_at = None
        try:
            data = os.read(self.descriptor, _AT_ONCE)
        except BlockingIOError:
            return True
        if not data:
            return False
        self._see_run()  # after reading: earlier output was written before this run was seen
        skipped = min(self._earlier, len(data))
        self._earlier -= skipped
        self.tail = (self.tail + data[skipped:])[-TAIL_BYTES:]
        self.passed_on.put(data, now)
        if len(data) == _AT_ONCE or self.passed_on.dropped:
            self.resume_at = now + _PAUSE
        return True

    def drain(self, now: float) -> bytes:
        """The worker is dead: read the rest, at most what the pipe holds. Returns the tail."""
        for _ in range(8):
            if not self.read(now) or self.resume_at is None:
                break
        self._see_run()  # it may have written nothing at all
        self.passed_on.tell_dropped()
        return self.tail

    def close(self) -> None:
        os.close(self.descriptor)


@dataclass(frozen=True)
class Outputs:
    """All outputs that `every` lists: read when data is available, floods again a little later."""

    reactor: Reactor
    log: Outlet
    every: Callable[[], Iterable[WorkerOutput]]

    def open(self, descriptor: int, worker: str, work: Work) -> WorkerOutput:
        output = WorkerOutput(descriptor, worker, self.log, work)
        self._watch(output)
        return output

    def _watch(self, output: WorkerOutput) -> None:
        self.reactor.watch(output.descriptor, partial(self._read, output))

    def _read(self, output: WorkerOutput) -> None:
        """Read once. A flood is read again a little later; its writer waits meanwhile."""
        if not output.read(time.monotonic()) or output.resume_at is not None:
            self.reactor.unwatch(output.descriptor)

    def floods(self) -> list[float | None]:
        """When to read the floods again."""
        return [output.resume_at for output in self.every()]

    def read_floods(self, now: float) -> None:
        for output in self.every():
            due = output.resume_at is not None and now >= output.resume_at
            if due and output.read(now) and output.resume_at is None:
                self._watch(output)

    def tell_dropped(self, now: float) -> None:
        """Once a tick; also what could not be written to the log itself."""
        for output in self.every():
            output.passed_on.tell_dropped(now)
        hint = "the reader of the log had stopped, or the disk was full"
        self.log.tell_lost(lambda lost: events(process="supervisor").warning("log_lost", bytes=lost, hint=hint))
