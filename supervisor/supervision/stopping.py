"""How the supervisor stops: workers finish their jobs, the rest are killed, and those that survive are left behind. A
burst stops it when no job is due or waiting for a retry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from supervisor.supervision.exit_reason import Cause
from supervisor.supervision.pool import Pool
from supervisor.supervision.worker_process import WorkerProcess, named
from supervisor.system.slot import State
from supervisor.telemetry import events

_AGAIN = 1.0  # seconds between two rounds of killing
_PATIENCE = 10.0  # seconds for killed workers to end
_NAMED = 10  # jobs
_BROKEN_LIMIT = 3  # failed set-ups in a row after which a burst gives up


class Progress(NamedTuple):
    """How far a burst is, for a progress bar."""

    pending: int
    failed: int
    done: int
    workers: int
    busy: int


Observer = Callable[[Progress], None]


class Burst:
    """Tells `observer` how far it is, and decides when it ends: from what the maintainer and the supervisor know."""

    def __init__(self, observer: Observer | None = None) -> None:
        self.gave_up = False  # something is unavailable; the exit code reports it
        self._observer = observer
        self._pending = self._failed = 0

    @property
    def exit_code(self) -> int:
        return 1 if self._failed or self.gave_up else 0

    def follow(self, news: Mapping[str, Any], pools: Iterable[Pool], *, unsettled: bool) -> str:
        """Process the maintainer's report. Returns why to stop, or "". `unsettled`: a death is not settled yet."""
        self._pending, self._failed = news["pending"], news["failed"]
        hopeless = [p for p in pools if p.code.current.restarts.failed_setups >= _BROKEN_LIMIT and p.scale.waiting.due]
        if hopeless:
            self.gave_up = True
            problem = hopeless[0].problem(time.monotonic())
            events().error("burst_given_up", pools=[pool.name for pool in hopeless], problem=problem)
            return "the burst cannot continue"
        if not news["over"] or unsettled:
            return ""
        if left := news["left"]:
            hint = f"`supervisor jobs why {left[0]}` says what that one waits for"
            events().warning("burst_left", jobs=left[:_NAMED], count=len(left), hint=hint)
        return "the burst is over"

    def show(self, workers: Iterable[WorkerProcess], finished_jobs: int) -> None:
        """Report the progress to the observer, if there is one."""
        if self._observer is not None:
            slots = [worker.slot.read() for worker in workers]
            done, busy = finished_jobs + sum(slot.done for slot in slots), sum(s.state is State.BUSY for s in slots)
            self._observer(Progress(self._pending, self._failed, done, len(slots), busy))


class Stopping:
    """`why` is empty until it has begun. `burst` ends it when its work is done; with `when_drained`, so does a drain of
    its host, for which a burst would wait for ever. Times are monotonic seconds.

    A killed worker does not end while it hangs in the kernel, or if it now belongs to another user. The supervisor
    does not wait for it forever, because that would also delay the next start.
    """

    def __init__(self, burst: Burst | None, *, when_drained: bool) -> None:
        self.why = ""
        self.burst = burst
        self.when_drained = when_drained or burst is not None
        self._kill_at = 0.0
        self._give_up_at = 0.0  # 0.0: nobody has been killed yet

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
        left = list(workers)
        if not self.why or not left or now < self._kill_at:
            return bool(self.why) and not left
        self._give_up_at = self._give_up_at or now + _PATIENCE
        for worker in left:
            if now >= self._give_up_at:
                hint = "it was killed but does not end: it hangs in the kernel, or belongs to another user now"
                job = worker.slot.read().job or None
                events(process="supervisor").error("worker_left_behind", **named(worker), job=job, hint=hint)
            else:
                worker.kill(Cause.SHUTDOWN)
        self._kill_at = now + _AGAIN
        return now >= self._give_up_at
