"""A worker's stderr: passed on to the log with a rate limit; its tail is kept for errors."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial

from supervisor.supervision.exit_reason import NO_RUN
from supervisor.system.outlet import Outlet, Ration
from supervisor.system.signals import Reactor
from supervisor.system.slot import Slot
from supervisor.telemetry import events
from supervisor.template.worker_start import BYTES_A_SECOND

TAIL_BYTES = 8192  # kept for job_errors
_AT_ONCE = 1 << 18  # bytes per read
_PAUSE = 0.01  # seconds between two reads during a flood


class WorkerOutput:
    """The reading end of one worker's stderr. Nothing here blocks: a flood is read in portions, with pauses in which
    its writer waits.

    `tail` is the end of what the current run in `slot` has written: neither what was read before that run was seen,
    nor what was unread when it began. `passed_on` is what goes to the log.
    """

    def __init__(self, descriptor: int, worker: str, log: Outlet, slot: Slot) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.passed_on = Ration(log, BYTES_A_SECOND, partial(_tell_dropped, worker))
        self.floods = False  # there was more than one portion
        self.tail = b""
        self._slot = slot
        self._run = NO_RUN  # the latest run seen
        self._earlier = 0  # bytes still to come that are not of this run

    def _see_run(self) -> None:
        run = self._slot.page.run
        if run not in (NO_RUN, self._run):
            self._run, self.tail, self._earlier = run, b"", self._slot.page.earlier_output

    def read(self) -> bool:
        """Read up to one portion. Returns False if no process can write any more."""
        self.floods = False
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
        self.floods = not self.passed_on.put(data) or len(data) == _AT_ONCE
        return True

    def drain(self) -> bytes:
        """The worker is dead: read the rest, at most what the pipe holds. Returns the tail."""
        for _ in range(8):
            if not self.read() or not self.floods:
                break
        self._see_run()  # it may have written nothing at all
        self.passed_on.tell_rest()
        return self.tail

    def close(self) -> None:
        os.close(self.descriptor)
        self.descriptor = -1


class Outputs:
    """All outputs that `every` lists: read when data is available, floods again a little later."""

    def __init__(self, reactor: Reactor, log: Outlet, every: Callable[[], Iterable[WorkerOutput]]) -> None:
        self._reactor = reactor
        self._log = log
        self._every = every
        self._floods: list[WorkerOutput] = []  # not watched for a moment
        self._resume_at = 0.0

    def open(self, descriptor: int, worker: str, slot: Slot) -> WorkerOutput:
        output = WorkerOutput(descriptor, worker, self._log, slot)
        self._watch(output)
        return output

    def _watch(self, output: WorkerOutput) -> None:
        if output.descriptor >= 0:
            self._reactor.watch(output.descriptor, partial(self._read, output))

    def _read(self, output: WorkerOutput) -> None:
        if not output.read() or output.floods:
            self._reactor.unwatch(output.descriptor)
        if output.floods:
            self._floods.append(output)
            self._resume_at = time.monotonic() + _PAUSE

    def moments(self) -> list[float | None]:
        """When to read the floods again, in monotonic seconds."""
        return [self._resume_at] if self._floods else []

    def read_floods(self) -> None:
        if self._floods and time.monotonic() >= self._resume_at:
            floods, self._floods = self._floods, []
            for output in floods:
                self._watch(output)

    def tell_dropped(self) -> None:
        """Once a tick; also what could not be written to the log itself."""
        for output in self._every():
            output.passed_on.tell_dropped()
        hint = "the reader of the log had stopped, or the disk was full"
        self._log.tell_lost(lambda lost: events(process="supervisor").warning("log_lost", bytes=lost, hint=hint))


def _tell_dropped(worker: str, size: int) -> None:
    events(process="supervisor").warning("output_dropped", worker=worker, bytes=size)
