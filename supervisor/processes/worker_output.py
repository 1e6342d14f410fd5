"""What a worker's handlers write to stderr: passed on to the log, its end kept, a flood of it bounded."""

from __future__ import annotations

import os
from collections.abc import Callable

from supervisor.system.outlet import Outlet
from supervisor.telemetry import events

TAIL_BYTES = 8192  # kept for job_errors
BYTES_A_SECOND = 2 << 20  # that are passed on, which is more than a program's bridge passes; the rest is dropped
_AT_ONCE = 1 << 18  # bytes of one look
_PAUSE = 0.01  # seconds between two looks at a flood

Pass = Callable[[bytes], None]


class WorkerOutput:
    """The reading end of one worker's stderr. Times are monotonic seconds.

    Nothing here waits for anybody: a flood is read in portions, with pauses in which its writer waits, and only so
    much of it a second goes on to the log.
    """

    def __init__(self, descriptor: int, worker: str, log: Outlet) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self.tail = b""
        self._worker = worker
        self._log = log
        self._second = 0.0  # when the present one began
        self._passed = self._dropped = 0
        self.resume_at: float | None = None  # when to look again at a flood

    @property
    def flooded(self) -> bool:
        """Whether more than a portion came at once: then it is looked at again at `resume_at`."""
        return self.resume_at is not None

    def read(self, now: float) -> bool:
        """Take in what is there now, up to a portion. False when nobody can write any more."""
        self.resume_at = None
        try:
            data = os.read(self.descriptor, _AT_ONCE)
        except BlockingIOError:
            return True
        if not data:
            return False
        self.tail = (self.tail + data)[-TAIL_BYTES:]
        self._pass_on(data, now)
        if len(data) == _AT_ONCE or self._dropped:
            self.resume_at = now + _PAUSE
        return True

    def drain(self, now: float) -> None:
        """The worker is dead: read what is left, which is no more than the pipe holds."""
        for _ in range(8):
            if not self.read(now) or self.resume_at is None:
                break
        self._tell_dropped()

    def _pass_on(self, data: bytes, now: float) -> None:
        if now - self._second >= 1.0:
            self.tell_dropped(now)
            self._second, self._passed = now, 0
        passed = data[: BYTES_A_SECOND - self._passed]
        self._passed += len(passed)
        self._dropped += len(data) - len(passed)
        if passed:
            self._log.put(passed)

    def tell_dropped(self, now: float) -> None:
        """One line for all of a second."""
        if now - self._second >= 1.0:
            self._tell_dropped()

    def _tell_dropped(self) -> None:
        if self._dropped:
            if not self.tail.endswith(b"\n"):
                self._log.put(b"\n")
            events(process="supervisor").warning("output_dropped", worker=self._worker, bytes=self._dropped)
            self._dropped = 0

    def close(self) -> None:
        os.close(self.descriptor)
