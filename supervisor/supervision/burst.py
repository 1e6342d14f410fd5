"""A burst: run until no job is due or waiting for a retry, then stop. Its progress and its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from supervisor.supervision.pool import Pool
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import State
from supervisor.telemetry import events

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
    """Decides when a burst ends, from the maintainer's reports and the supervisor's own state."""

    def __init__(self) -> None:
        self._pending = self._failed = 0
        self._gave_up = False

    @property
    def exit_code(self) -> int:
        return 1 if self._failed or self._gave_up else 0

    def follow(self, news: Mapping[str, Any], pools: Iterable[Pool], *, unsettled: bool) -> str:
        """Process the maintainer's report. Returns why to stop, or "". `unsettled`: a death is not settled yet."""
        self._pending, self._failed = news["pending"], news["failed"]
        hopeless = [p for p in pools if p.failures.restarts.failed_setups >= _BROKEN_LIMIT and p.waiting.due]
        if hopeless:
            self._gave_up = True
            problem = hopeless[0].problem(time.monotonic())
            events().error("burst_given_up", pools=[pool.name for pool in hopeless], problem=problem)
            return "the burst cannot continue"
        return "the burst is over" if news["over"] and not unsettled else ""

    def give_up(self) -> None:
        """Give up because something is unavailable; the exit code reports it."""
        self._gave_up = True

    def progress(self, workers: Iterable[WorkerProcess], finished_jobs: int) -> Progress:
        slots = [worker.slot.read() for worker in workers]
        return Progress(
            pending=self._pending,
            failed=self._failed,
            done=finished_jobs + sum(slot.done for slot in slots),
            workers=len(slots),
            busy=sum(slot.state is State.BUSY for slot in slots),
        )
