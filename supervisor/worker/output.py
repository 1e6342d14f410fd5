"""What a program prints: passed on to the worker's own stderr within bounds, its end kept."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from supervisor.system import signals
from supervisor.worker.program import unread

TAIL_BYTES = 8192  # kept for job_errors, like a worker's
PASSED_ON = 1 << 20  # bytes passed on for one job
_STDERR = 2
_SETTLING = 0.1  # seconds to wait for what has been printed already


class Output(threading.Thread):
    """Reads at once and always, so that no program ever waits for somebody to read its chatter.

    Tells `ended` when the program has ended, between jobs, too. Ends with the last writer of the pipe.
    """

    def __init__(self, pipe: int, pidfd: int, ended: Callable[[], None]) -> None:
        super().__init__(name="output", daemon=True)
        self._pipe = pipe
        self._pidfd = pidfd
        self._ended = ended
        self._lock = threading.Lock()
        self._tail = b""
        self._passed = 0
        self._left_out = 0

    def begin(self) -> None:
        """A job begins: what is printed from now on is its."""
        with self._lock:
            self._tail = b""
            self._passed, left_out, self._left_out = 0, self._left_out, 0
        if left_out:
            _pass_on(f"[{left_out} more bytes of the program's output were left out]\n".encode())

    def tail(self) -> str | None:
        """The end of what the job has printed so far; None if that is nothing."""
        deadline = time.monotonic() + _SETTLING
        while self.is_alive() and unread(self._pipe) and time.monotonic() < deadline:
            time.sleep(0.001)
        with self._lock:
            return self._tail.decode("utf-8", "replace") or None

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
            data = os.read(self._pipe, 65536)
            self._tail = (self._tail + data)[-TAIL_BYTES:]
            allowed = data[: max(0, PASSED_ON - self._passed)]
            self._passed += len(allowed)
            self._left_out += len(data) - len(allowed)
        _pass_on(allowed)
        return bool(data)


def _pass_on(data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody reads our stderr any more
        while data:
            data = data[os.write(_STDERR, data) :]
