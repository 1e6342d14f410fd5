"""What a program prints: passed on to the worker's own stderr, which the supervisor limits; the end is kept."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from supervisor.system import signals
from supervisor.system.kernel import unread

TAIL_BYTES = 8192  # kept for job_errors, as for a worker
_STDERR = 2
_SETTLING = 0.1  # seconds to wait for output that has already been printed


class Output(threading.Thread):
    """Reads continuously, so that a program never blocks on its output.

    Calls `ended` when the program has ended, between jobs, too. Ends with the last writer of the pipe. `keep`
    receives everything that a job prints, from `begin` to `settle`: what comes between two jobs belongs to none, also
    if it is read when the worker already counts the next one as running.
    """

    def __init__(self, pipe: int, pidfd: int, ended: Callable[[], None], keep: Callable[[bytes], None]) -> None:
        super().__init__(name="output", daemon=True)
        self._pipe = pipe
        self._pidfd = pidfd
        self._ended = ended
        self._keep = keep
        self._lock = threading.Lock()
        self._tail = b""
        self._read_so_far = 0
        self._begins_at = 0  # the byte at which the job's own output starts
        self._of_job = False

    def begin(self) -> None:
        """A job starts: what is printed from now on belongs to it."""
        with self._lock:
            self._tail = b""
            self._begins_at = self._printed()
            self._of_job = True

    def tail(self) -> str | None:
        """The end of what the job has printed so far; None if it has printed nothing."""
        self.settle()
        with self._lock:
            return self._tail.decode("utf-8", "replace") or None

    def settle(self) -> None:
        """A job has ended: wait until what has been printed so far is kept. What comes later is not its."""
        with self._lock:
            printed = self._printed()
        deadline = time.monotonic() + _SETTLING
        while self._read_so_far < printed and self.is_alive() and time.monotonic() < deadline:
            time.sleep(0.0005)
        self._of_job = False

    def _printed(self) -> int:
        return self._read_so_far + (unread(self._pipe) if self.is_alive() else 0)

    def run(self) -> None:
        signals.block_all()
        poll = select.poll()
        poll.register(self._pipe, select.POLLIN)
        poll.register(self._pidfd, select.POLLIN)
        watched = {self._pipe, self._pidfd}
        while watched:
            for descriptor, _ in poll.poll():
                if descriptor == self._pidfd:
                    self._ended()
                elif self._read():
                    continue
                poll.unregister(descriptor)
                watched.discard(descriptor)

    def _read(self) -> bool:
        """False at the end of the pipe."""
        with self._lock:
            data = passed_on = os.read(self._pipe, 65536)
            own = data[max(0, self._begins_at - self._read_so_far) :]
            self._tail = (self._tail + own)[-TAIL_BYTES:]
            if self._of_job:
                self._keep(own)
            self._read_so_far += len(data)
        with contextlib.suppress(OSError):  # nobody reads our stderr any more
            while passed_on:
                passed_on = passed_on[os.write(_STDERR, passed_on) :]
        return bool(data)
