"""What the heartbeat thread does beside several runs: limits, cancels, progress, and a blocked event loop."""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from types import FrameType
from typing import Any

from supervisor.system.slot import CANCELS, Cancel, Slot
from supervisor.worker.event_loop import CURRENT
from supervisor.worker.exchange import Exchange
from supervisor.worker.heartbeat import EVERY
from supervisor.worker.runners.concurrent.run import ConcurrentRun, Key, Shown

TICK = 0.2  # seconds between two looks while jobs run
_GOES_ON = 2.5  # seconds after its interruption, at which it is told where a run still is
BLOCKED = 1.0  # seconds without a turn of the event loop after which it is named what blocks it
_HELD = 1.0  # seconds without a look after which nothing in this process can have run
_LEAST = 1.0  # seconds that the others still have when the loop is free again
_SHARE = 10  # writing progress may take one part in this many of the time
_FRAMES = 20  # of a stack in the log


class Watch:
    """`runs` are those that have begun; `stop` interrupts one, and `wake` has `look` called soon."""

    def __init__(
        self,
        slot: Slot,
        exchange: Exchange,
        runs: Mapping[Key, ConcurrentRun],
        shown: Shown,
        stop: Callable[[ConcurrentRun, Cancel], bool],
        wake: Callable[[], None],
        log: Any,
    ) -> None:
        self._slot = slot
        self._exchange = exchange
        self._runs = runs
        self._shown = shown
        self._stop_run = stop
        self._wake = wake
        self._log = log
        self._watching = False
        self._cancels_made = 0
        self._progress_at = self._looked_at = 0.0
        self._loop = _LoopWatch(log)

    def reported(self) -> None:
        """A job has begun, or has reported its progress. Cheap."""
        if not self._watching:
            self._watching = True
            self._wake()

    def look(self, now: float) -> float | None:
        """As `Runner.watch`."""
        if not self._watching:
            return None
        self._watching = False  # first: whoever begins from now on tells us
        runs = [run for run in list(self._runs.values()) if not run.ended]
        if not runs:
            self._loop.forget()
            self._looked_at = 0.0
            return None
        self._watching = True
        self._note_cancels(runs, now)
        since = self._looked_at or min(run.started for run in runs)
        self._looked_at = now
        if now - since > _HELD:
            self._was_held(runs, since, now)
        elif self._loop.look(now, runs) or self._shown.is_outdated:
            self._shown.refresh()
        for run in runs:
            if run.stopped_for is not Cancel.NONE:
                self._tell_if_it_goes_on(run, now)
            elif now >= run.must_end:
                self._stop(run, now)
        if now >= self._progress_at:
            self._write_progress(runs)
        return TICK

    def _was_held(self, runs: Iterable[ConcurrentRun], since: float, now: float) -> None:
        """Something has held the interpreter's lock, or the process was stopped: that time counts for no limit."""
        self._loop.forget()
        for run in runs:
            if run.stopped_for is Cancel.NONE:
                run.deadline += now - max(run.started, since)
        self._shown.refresh()

    def _stop(self, run: ConcurrentRun, now: float) -> None:
        over = now >= run.deadline
        if self._stop_run(run, Cancel.TIMEOUT if over else Cancel.REQUESTED):
            run.tell_at = now + _GOES_ON
            fields = {"limit_seconds": round(run.deadline - run.started, 3)} if over else {"why": "cancelled"}
            self._log.warning("job_timed_out" if over else "job_interrupted", job=run.claim.job_id, **fields)

    def _tell_if_it_goes_on(self, run: ConcurrentRun, now: float) -> None:
        """Soon the supervisor will kill the worker for it."""
        if now < run.tell_at:
            return
        run.tell_at = math.inf
        if run.task is not None:
            frames = [(frame, frame.f_lineno) for frame in _awaiting(run.task.get_coro())]
        else:
            frames = list(traceback.walk_stack(sys._current_frames().get(run.waits_in)))[::-1]
        stack = traceback.StackSummary.extract(iter(frames[-_FRAMES:]))
        self._log.warning(
            "job_does_not_stop",
            job=run.claim.job_id,
            stack="".join(stack.format()),
            hint="if it continues, the worker is killed, and its other jobs run again",
        )

    def _note_cancels(self, runs: Iterable[ConcurrentRun], now: float) -> None:
        requests = self._slot.requests
        made, before = requests.cancels_made, self._cancels_made
        if made == before:
            return
        asked = self._exchange.cancels() if made - before > CANCELS else ()
        self._cancels_made = made
        for run in runs:
            key = (run.claim.job_id, run.claim.token)
            if not run.cancelled_at and (key in asked or requests.cancel_requested(*key) is Cancel.REQUESTED):
                run.cancelled_at = now
        self._shown.refresh()

    def _write_progress(self, runs: Iterable[ConcurrentRun]) -> None:
        began = monotonic()
        self._progress_at = began + EVERY
        for run in runs:
            if not run.news or run.progress is None or began - run.started < EVERY:
                continue
            run.news = False
            if not self._exchange.show_progress((run.claim.job_id, run.claim.token), 1, *run.progress):
                run.news = True
                break
        self._progress_at = max(self._progress_at, monotonic() + _SHARE * (monotonic() - began))


class _LoopWatch:
    """Names what blocks the event loop of the main thread: the same callback is running in two looks. Costs the loop
    nothing. Loops other than Python's own are not seen.

    The time for which one job blocks the loop does not count for the limits of the others there.
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._main = threading.main_thread().ident or os.getpid()
        self.forget()

    def forget(self) -> None:
        self._handle: Any = None
        self._since = self._looked = 0.0
        self._told = False

    def look(self, now: float, runs: Iterable[ConcurrentRun]) -> bool:
        """Returns whether limits have changed."""
        frames, handle = _running(sys._current_frames().get(self._main))
        if handle is not self._handle or handle is None:
            self._handle, self._since, self._told, self._looked = handle, now, False, now
            return False
        blocking = handle._context.get(CURRENT)
        for run in runs:
            if run.on_loop and run is not blocking and run.stopped_for is Cancel.NONE:
                run.deadline = max(run.deadline + now - max(run.started, self._looked), now + _LEAST)
        self._looked = now
        if not self._told and now - self._since >= BLOCKED:
            self._told = True
            self._tell(frames, blocking, now - self._since)
        return True

    def _tell(self, frames: list[FrameType], run: ConcurrentRun | None, seconds: float) -> None:
        fields = {} if run is None else {"job": run.claim.job_id, "type": run.claim.type}
        stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames[-_FRAMES:])
        at = stack[-1] if stack else None
        self._log.warning(
            "event_loop_blocked",
            **fields,
            seconds=round(seconds, 1),
            at=None if at is None else f"{at.filename}:{at.lineno} in {at.name}",
            stack="".join(stack.format()),
            hint="the worker's other async jobs wait meanwhile; use await, or asyncio.to_thread",
        )


def _awaiting(coroutine: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of those that it awaits."""
    while (frame := getattr(coroutine, "cr_frame", None)) is not None:
        yield frame
        coroutine = coroutine.cr_await


def _running(frame: FrameType | None) -> tuple[list[FrameType], Any]:
    """The frames of the callback that an event loop runs, outermost first, and its handle; None if it runs none."""
    frames: list[FrameType] = []
    while frame is not None:
        if frame.f_code is _RUN:
            return frames[::-1], frame.f_locals["self"]
        frames.append(frame)
        frame = frame.f_back
    return [], None


_RUN = asyncio.Handle._run.__code__
