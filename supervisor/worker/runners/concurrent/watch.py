"""What the heartbeat thread does beside several runs: limits, cancels, progress, and a blocked event loop."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from types import FrameType
from typing import Any

from supervisor.system.slot import CANCELS, Cancel
from supervisor.worker.event_loop import CURRENT
from supervisor.worker.heartbeat import EVERY
from supervisor.worker.loop import Parts
from supervisor.worker.runners.concurrent.runs import ConcurrentRun, Runs

TICK = 0.2  # seconds between two looks while jobs run
BLOCKED = 1.0  # seconds without a turn of the event loop after which it is named what blocks it
_HELD = 0.5  # seconds without a look after which nothing in this process can have run
_LEAST = 1.0  # seconds that the others still have when the loop is free again
_SHARE = 10  # writing progress may take one part in this many of the time
_FRAMES = 20  # of a stack in the log


class Watch:
    """`stop` interrupts a run; False if it has not begun yet.

    What blocks the event loop is named: the same callback is running in two looks, which costs the loop nothing. The
    time for which one job blocks it does not count for the limits of the others there. Loops other than Python's own
    are not seen.
    """

    def __init__(self, parts: Parts, runs: Runs, stop: Callable[[ConcurrentRun, Cancel], bool]) -> None:
        self._parts = parts
        self._log = parts.executor.log
        self._runs = runs
        self._stop_run = stop
        self._main = threading.main_thread().ident or os.getpid()
        self._watching = False
        self._cancels_made = 0
        self._progress_at = self._looked_at = 0.0
        self._callback: Any = None  # which the event loop was running at the last look
        self._callback_since = 0.0
        self._named = False

    def attend(self) -> None:
        """A job has begun. Cheap."""
        if not self._watching:
            self._watching = True
            self._parts.heartbeat.wake()

    def look(self, now: float) -> float | None:
        """As `Runner.watch`."""
        if not self._watching:
            return None
        self._watching = False  # first: whoever begins from now on tells us
        runs = self._runs.going_on()
        if not runs:
            self._callback = None
            self._looked_at = 0.0
            return None
        self._watching = True
        self._note_cancels(runs, now)
        since = self._looked_at or min(run.started for run in runs)
        self._looked_at = now
        if now - since > _HELD:  # something has held the interpreter's lock, or the process was stopped
            self._callback = None
            _grant(runs, since, now)
        else:
            self._look_at_loop(runs, since, now)
        self._runs.show()
        for run in runs:
            if now >= run.must_end and run.stopped_for is Cancel.NONE:
                self._stop(run, now)
        if now >= self._progress_at:
            self._write_progress(runs)
        return TICK

    def _look_at_loop(self, runs: Iterable[ConcurrentRun], since: float, now: float) -> None:
        frames, callback = _running(sys._current_frames().get(self._main))
        if callback is None or callback is not self._callback:
            self._callback, self._callback_since, self._named = callback, now, False
            return
        blocking = callback._context.get(CURRENT)
        _grant([run for run in runs if run.on_loop and run is not blocking], since, now, least=_LEAST)
        if not self._named and now - self._callback_since >= BLOCKED:
            self._named = True
            self._name(frames, blocking, now - self._callback_since)

    def _name(self, frames: list[FrameType], run: ConcurrentRun | None, seconds: float) -> None:
        stack = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames[-_FRAMES:])
        at = stack[-1] if stack else None
        self._log.warning(
            "event_loop_blocked",
            **({} if run is None else {"job": run.claim.job_id, "type": run.claim.type}),
            seconds=round(seconds, 1),
            at=None if at is None else f"{at.filename}:{at.lineno} in {at.name}",
            stack="".join(stack.format()),
            hint="the worker's other async jobs wait meanwhile; use await, or asyncio.to_thread",
        )

    def _stop(self, run: ConcurrentRun, now: float) -> None:
        over = now >= run.deadline
        if self._stop_run(run, Cancel.TIMEOUT if over else Cancel.REQUESTED):
            fields = {"limit_seconds": round(run.deadline - run.started, 3)} if over else {"why": "cancelled"}
            self._log.warning("job_timed_out" if over else "job_interrupted", job=run.claim.job_id, **fields)

    def _note_cancels(self, runs: Iterable[ConcurrentRun], now: float) -> None:
        page, before = self._parts.slot.page, self._cancels_made
        self._cancels_made = page.cancels
        if self._cancels_made == before:
            return
        asked = self._parts.exchange.cancels() if self._cancels_made - before > CANCELS else ()
        for run in runs:
            if run.key in asked or page.cancel_requested(*run.key) is Cancel.REQUESTED:
                run.cancel_by = min(run.cancel_by, now + self._parts.pool.cancel_grace)

    def _write_progress(self, runs: Iterable[ConcurrentRun]) -> None:
        began = monotonic()
        for run in runs:
            reported = run.unwritten
            if reported is None or began - run.started < EVERY:
                continue
            if not self._parts.exchange.show_progress(run.key, 1, *reported):
                break
            if run.unwritten is reported:
                run.unwritten = None
        ended = monotonic()
        self._progress_at = max(began + EVERY, ended + _SHARE * (ended - began))


def _grant(runs: Iterable[ConcurrentRun], since: float, now: float, least: float = -inf) -> None:
    """The time since then counts for no limit of these, and they have at least so much left."""
    for run in runs:
        if run.stopped_for is Cancel.NONE:
            run.deadline = max(run.deadline + now - max(run.started, since), now + least)


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
