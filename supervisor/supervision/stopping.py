"""How the supervisor stops: workers finish their jobs, the rest are killed, and those that survive are left behind."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.supervision.burst import Burst
from supervisor.supervision.exit_reason import Cause
from supervisor.supervision.worker_process import WorkerProcess, named
from supervisor.telemetry import events

_AGAIN = 1.0  # seconds between two rounds of killing
_PATIENCE = 10.0  # seconds for killed workers to end


class Stopping:
    """`why` is empty until it has begun. `burst` ends it when its work is done; with `when_drained`, so does a drain of
    its host. Times are monotonic seconds.

    A killed worker does not end while it hangs in the kernel, or if it now belongs to another user. The supervisor
    does not wait for it forever, because that would also delay the next start.
    """

    def __init__(self, burst: Burst | None, *, when_drained: bool) -> None:
        self.why = ""
        self.burst = burst
        # A burst would wait for ever for the end of its jobs.
        self.when_drained = when_drained or burst is not None
        self._kill_at = 0.0
        self._killed_since: float | None = None

    @property
    def exit_code(self) -> int:
        return 0 if self.burst is None else self.burst.exit_code

    def begin(self, why: str, grace: float, now: float) -> None:
        """Start stopping. Running jobs have `grace` seconds."""
        self.why, self._kill_at = why, now + grace

    def hurry(self, now: float) -> None:
        """Kill the remaining workers now, which releases their jobs."""
        self._kill_at = now

    def moments(self) -> list[float | None]:
        """When to check again."""
        return [self._kill_at] if self.why else []

    def over(self, workers: Iterable[WorkerProcess], now: float) -> bool:
        """Whether no worker is left to wait for."""
        if not self.why:
            return False
        left = list(workers)
        if not left or now < self._kill_at:
            return not left
        since = self._killed_since = now if self._killed_since is None else self._killed_since
        if now - since >= _PATIENCE:
            for worker in left:
                hint = "it was killed but does not end: it hangs in the kernel, or belongs to another user now"
                fields = {**named(worker), "job": worker.slot.read().job or None, "hint": hint}
                events(process="supervisor").error("worker_left_behind", **fields)
            return True
        for worker in left:
            worker.kill(Cause.SHUTDOWN)
        self._kill_at = now + _AGAIN
        return False
