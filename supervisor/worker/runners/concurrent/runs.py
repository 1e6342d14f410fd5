"""The runs of a worker that has several: what the context of each does, what it prints, and how the slot shows them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from math import inf
from operator import attrgetter
from threading import Lock, RLock
from time import monotonic
from typing import Any

from supervisor.domain.job import Claim, RunKey
from supervisor.domain.settlement import Settlement
from supervisor.system.run_log import RunLog
from supervisor.system.slot import Cancel, Slot
from supervisor.worker import returned_fork
from supervisor.worker.context import Context
from supervisor.worker.event_loop import CURRENT
from supervisor.worker.recorder import SlotBoard


class ConcurrentRun(SlotBoard):
    """A run, and the board of its context. Times are monotonic seconds, but for `started_at`.

    It runs `on_loop`, in its `task`, or in a `thread`; these two are set when it has begun. It is interrupted at its
    `deadline`, or when it was cancelled and the time to notice that is over, `cancel_by`; `stopped_for` says why it
    was. `together` is how many may run while it does; `ended`, that its settlement is known.
    """

    ctx: Context
    settlement: Settlement
    on_loop: bool

    def __init__(
        self, claim: Claim, runs: Runs, common: SlotBoard, started_at: float, timeout: float, together: int
    ) -> None:
        self.claim = claim
        self.key: RunKey = (claim.job_id, claim.token)
        self._runs = runs
        self._common, self._chunks = common, common._chunks
        self.started, self.started_at = monotonic(), started_at
        self.deadline, self.cancel_by = self.started + timeout, inf
        self.together = together
        self.stopped_for = Cancel.NONE
        self.ended = False
        self.lost = False  # its claim is another job's
        self.interrupted = False  # by an exception that was raised in its thread, not at an await
        self.task: asyncio.Task[None] | None = None
        self.thread = 0  # until it is interrupted there
        self.log: RunLog | None = None
        self.unwritten: tuple[float, str] | None = None  # progress that is not in the table
        self._permit = Lock()

    @property
    def must_end(self) -> float:
        """When it is interrupted."""
        return min(self.deadline, self.cancel_by)

    def take_permit(self) -> bool:
        """Whether the caller may interrupt it, or end it where it runs: the first one may."""
        return self._permit.acquire(blocking=False)

    def own_log(self) -> RunLog:
        """Created when it says something first."""
        if self.log is None:
            self.log = RunLog()
            self.log.run = self.claim
        return self.log

    # As the board of its context

    def keep(self, line: str) -> None:
        if returned_fork.mark[0]:
            self.own_log().line(line)

    def progress(self, fraction: float, text: str) -> None:
        if returned_fork.mark[0]:
            self.unwritten = (fraction, text)

    def extend(self, seconds: float) -> None:
        self.check("extend")
        if self.stopped_for is Cancel.NONE:  # else it is too late
            self.deadline = monotonic() + seconds
            self._runs.show()

    def cancelled(self, job: int, token: int) -> bool:
        return self.cancel_by < inf or self._common.cancelled(job, token)

    def epoch(self) -> str:
        return self._common.epoch()

    def about(self, job: int, what: str) -> tuple[Any, int | None]:
        return self._common.about(job, what)


class Runs(dict[RunKey, ConcurrentRun]):
    """Those that have begun and were not collected; only the thread of the loop adds and removes any.

    The slot shows how many go on, and the one that must end first: the supervisor kills the worker if that run does not
    end in time.
    """

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self._slot = slot
        self._lock = RLock()
        self._shown: ConcurrentRun | None = None
        self._going_on = self._ended = 0  # changed under the lock

    def going_on(self) -> list[ConcurrentRun]:
        return [run for run in list(self.values()) if not run.ended]

    def begin(self, new: Iterable[ConcurrentRun]) -> None:
        with self._lock:
            self.update((run.key, run) for run in new)
            self._going_on = len(self.going_on())
        self.show()

    def end(self, run: ConcurrentRun) -> None:
        """At once: it may take long until its outcome is written, and until then it must not be taken to run. Nor may
        one that goes on be without a limit: it may keep the interpreter's lock from now on.
        """
        with self._lock:
            run.ended = True
            self._going_on -= 1
            self._ended += 1
            self._slot.end(self._ended, run.key, self._going_on)
            if run is self._shown:
                self.show()

    def show(self) -> None:
        with self._lock:
            runs = self.going_on()
            first = self._shown = min(runs, key=attrgetter("must_end"), default=None)
            shown = (0, 0, 0.0, 0.0) if first is None else (*first.key, first.started, first.deadline)
            self._slot.show(shown, len(runs))


class RunLogs(RunLog):
    """What is printed or logged belongs to the run in whose context that happens. What a run says that began alone is
    in `memory`, which outlives this process.
    """

    def __init__(self, memory: memoryview | None = None) -> None:
        super().__init__()
        self.run = ()  # something is always captured
        self._lasting = RunLog(memory)

    def begin(self, run: ConcurrentRun, *, alone: bool) -> None:
        if alone and self._lasting.run is None:
            self._lasting.run, run.log = run.claim, self._lasting

    def end(self, run: ConcurrentRun) -> str | None:
        """All that it has said; None if nothing."""
        if run.log is None:
            return None
        text = run.log.text()
        run.log.run = None
        run.log.forget()
        return text

    def add(self, data: bytes) -> None:
        run: ConcurrentRun | None = CURRENT.get()
        if run is not None:
            run.own_log().add(data)

    def forget_in_child(self) -> None:
        super().forget_in_child()
        self._lasting.forget_in_child()
