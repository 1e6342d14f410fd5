"""The runs of a worker that runs several at the same time, and what its slot shows of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.system.run_log import RunLog
from supervisor.system.slot import Cancel, Work
from supervisor.worker import forked
from supervisor.worker.context import Context
from supervisor.worker.event_loop import CURRENT
from supervisor.worker.recorder import SlotBoard

if TYPE_CHECKING:
    from asyncio import Task
    from collections.abc import Callable

Key = tuple[int, int]  # job and token


@dataclass(eq=False, slots=True)
class ConcurrentRun:
    """Times are monotonic seconds, but for `started_at`. It runs `on_loop`, in its `task`, or in a `thread`; these two
    are set when it has begun. A function in a thread that returns an awaitable goes on there `on_loop`. `stopped_for`
    says why it was interrupted; `ended`, that its settlement is known.
    """

    claim: Claim
    started: float
    started_at: float
    deadline: float
    together: int  # the number of jobs that may run while this one does
    cancel_grace: float  # seconds from `cancelled_at` until it is interrupted
    ctx: Context = field(init=False)
    settlement: Settlement = field(init=False)
    on_loop: bool = field(init=False)
    cancelled_at: float = 0.0
    stopped_for: Cancel = Cancel.NONE
    ended: bool = False
    interrupted: bool = False  # by an exception that was raised in its thread, not at an await
    task: Task[None] | None = None
    thread: int = 0  # until it is interrupted there
    waits_in: int = 0  # the same thread, always
    tell_at: float = 0.0
    log: RunLog | None = None
    progress: tuple[float, str] | None = None
    news: bool = False  # progress that is not in the table yet
    _permit: Lock = field(default_factory=Lock)
    _thread_permit: Lock = field(default_factory=Lock)

    @property
    def must_end(self) -> float:
        """When it is interrupted."""
        return min(self.deadline, self.cancelled_at + self.cancel_grace) if self.cancelled_at else self.deadline

    def take_permit(self) -> bool:
        """Whether the caller may interrupt it on the loop, or end it there: the first one may."""
        return self._permit.acquire(blocking=False)

    def take_thread_permit(self) -> bool:
        """The same for its thread. One that goes on on the loop has ended in its thread."""
        return self._thread_permit.acquire(blocking=False)


class RunBoard(SlotBoard):
    """What the context of one run does. `changed` is called when its time limit has changed, `told` when it has
    reported its progress.
    """

    def __init__(
        self, common: SlotBoard, run: ConcurrentRun, changed: Callable[[], None], told: Callable[[], None]
    ) -> None:
        self._common = common
        self.run = run
        self._changed = changed
        self._told = told
        self._chunks = common._chunks

    def keep(self, line: str) -> None:
        if forked.mark[0]:
            kept(self.run).line(line)

    def progress(self, fraction: float, text: str) -> None:
        if forked.mark[0]:
            run = self.run
            run.progress, run.news = (fraction, text), True
            self._told()

    def extend(self, seconds: float) -> None:
        self.check("extend")
        if self.run.stopped_for is not Cancel.NONE:
            return  # too late
        self.run.deadline = monotonic() + seconds
        self._changed()

    def cancelled(self, job: int, token: int) -> bool:
        return self.run.cancelled_at > 0 or self._common.cancelled(job, token)

    def epoch(self) -> str:
        return self._common.epoch()

    def meta(self, job: int) -> Any:
        self.check("meta")
        return self._common.meta(job)


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
            kept(run).add(data)

    def forget_in_child(self) -> None:
        super().forget_in_child()
        self._lasting.forget_in_child()


def kept(run: ConcurrentRun) -> RunLog:
    """The log of a run, created when it says something first."""
    if run.log is None:
        run.log = RunLog()
        run.log.run = run.claim
    return run.log


class Shown:
    """How many runs there are, and the one that must end first, in the worker's slot: the supervisor kills the worker
    if that run does not end in time. May be used by any thread, but `begin` by that of the loop, which alone adds to
    `runs`.
    """

    def __init__(self, work: Work, runs: dict[Key, ConcurrentRun]) -> None:
        self._work = work
        self._runs = runs
        self._lock = Lock()
        self._shown: ConcurrentRun | None = None
        self._running = self._ended = 0  # runs; changed under the lock

    @property
    def is_outdated(self) -> bool:
        """Whether the run that is shown has ended."""
        return self._shown is not None and self._shown.ended

    def begin(self, new: dict[Key, ConcurrentRun]) -> None:
        with self._lock:
            self._running += len(new)
            self._runs.update(new)
        self.refresh()

    def end(self, run: ConcurrentRun) -> None:
        """At once: it may take long until its outcome is written, and until then it must not be taken to run."""
        with self._lock:
            run.ended = True
            self._running -= 1
            self._ended += 1
            if run is self._shown:
                self._work.extend(0.0)  # its limit is over; the next one is shown in a moment
            self._work.end(self._ended, (run.claim.job_id, run.claim.token), self._running)

    def refresh(self) -> None:
        with self._lock:
            runs = [run for run in list(self._runs.values()) if not run.ended]
            first, work = min(runs, key=attrgetter("must_end"), default=None), self._work
            self._shown = first
            if first is None:
                work.show((0, 0, 0.0, 0.0), 0)
                return
            claim = first.claim
            work.show((claim.job_id, claim.token, first.started, first.deadline), len(runs))
