"""A burst: a run of the supervisor that ends when no job is due or waiting for a retry."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from supervisor.supervision.pool import Pool, problem_of
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
    """Tells `observer` how far it is, and decides when it ends: from what the maintainer and the supervisor know."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer
        self._pending = self._failed = 0
        self._gave_up = False

    @property
    def exit_code(self) -> int:
        return 1 if self._failed or self._gave_up else 0

    def follow(self, news: Mapping[str, Any], pools: Iterable[Pool], *, unsettled: bool) -> str:
        """Process the maintainer's report. Returns why to stop, or "". `unsettled`: a death is not settled yet."""
        self._pending, self._failed = news["pending"], news["failed"]
        hopeless = [p for p in pools if p.code.current.restarts.failed_setups >= _BROKEN_LIMIT and p.scale.waiting.due]
        if hopeless:
            self._gave_up = True
            problem = problem_of(hopeless[0], time.monotonic())
            events().error("burst_given_up", pools=[pool.name for pool in hopeless], problem=problem)
            return "the burst cannot continue"
        return "the burst is over" if news["over"] and not unsettled else ""

    def give_up(self) -> None:
        """Give up because something is unavailable; the exit code reports it."""
        self._gave_up = True

    def show(self, workers: Iterable[WorkerProcess], finished_jobs: int) -> None:
        """Report the progress to the observer, if there is one."""
        if self._observer is None:
            return
        slots = [worker.slot.read() for worker in workers]
        progress = Progress(
            pending=self._pending,
            failed=self._failed,
            done=finished_jobs + sum(slot.done for slot in slots),
            workers=len(slots),
            busy=sum(slot.state is State.BUSY for slot in slots),
        )
        self._observer(progress)
