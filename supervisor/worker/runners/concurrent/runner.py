"""Several jobs at the same time: begins them when there is room, and collects what has ended."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from concurrent.futures.thread import _worker
from contextvars import Context as Variables
from math import inf
from typing import Any

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement, Usage
from supervisor.system.slot import Cancel, RecycleReason, State
from supervisor.worker import returned_fork
from supervisor.worker.context import RUN_ENDED
from supervisor.worker.fitness import Ruined, leave_ruined
from supervisor.worker.handler import Handler
from supervisor.worker.loop import Parts
from supervisor.worker.recorder import WORTH, SlotBoard
from supervisor.worker.runners.concurrent.calls import Calls
from supervisor.worker.runners.concurrent.runs import ConcurrentRun, RunLogs, Runs
from supervisor.worker.runners.concurrent.watch import Watch

_NO_TOKEN = 0  # no claim has it
_MAIN_PATIENCE = 1.0  # seconds in which the main thread should answer while no job runs


class Concurrent:
    """Implements `Runner`. `_finished` are the runs that have ended and were not collected. Created in the main thread,
    when the handler is loaded.
    """

    def __init__(self, parts: Parts) -> None:
        pool, executor = parts.pool, parts.executor
        handler, logs = executor.handler, executor.recorder.run_log
        assert isinstance(handler, Handler)  # a program is given one job at a time
        assert isinstance(logs, RunLogs)
        self._parts = parts
        parts.exchange.held.in_order = False
        self._handler, self._logs = handler, logs
        self._loop = handler.event_loop
        self._main = threading.get_ident()
        self._runs = Runs(parts.slot)
        self._finished: deque[ConcurrentRun] = deque()
        self._awake = True
        self._left = False
        self.done = 0
        self._calls = Calls(handler, executor, self._ended, uses_device=bool(pool.gpus))
        self._full = 0  # with that many running a claim did not fit: none is claimed until there are fewer
        self._watch = Watch(parts, self._runs, self._calls.stop)
        self.watch: Callable[[float], float | None] = self._watch.look
        self.interrupt: Callable[[], None] = self._calls.interrupt
        self.running = self._runs.keys
        executor.timed_out = lambda claim: self._runs[claim.job_id, claim.token].stopped_for is Cancel.TIMEOUT

    # In the main thread

    def host(self, loop: Callable[[], None]) -> None:
        self._parts.slot.page.concurrency = self._parts.pool.concurrency
        self._handler.shares_loop = True  # the set-up had the event loop for itself
        self._loop.tidy()
        thread = threading.Thread(target=self._host, args=(loop,), name="claims", daemon=True)
        thread.start()
        while not self._left:
            try:
                self._loop.serve()
            except BaseException as error:
                returned_fork.leave()
                if isinstance(error, Exception):  # the loop is broken: what a job raises there ends in the loop
                    raise Ruined(f"a handler has broken the event loop: {error}") from None
                # raised by what a job has started
                self._parts.executor.log.warning("event_loop_interrupted", error=repr(error))
            returned_fork.leave()
        thread.join()

    def detach(self) -> None:
        """In a process that a handler has forked: the other jobs are not its own."""
        if threading.get_ident() == self._main:
            self._loop.detach()

    # In the thread of the loop

    def _host(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            returned_fork.leave(error)
            leave_ruined(error, self._parts.slot, self._parts.executor.log)
        self._left = True
        self._loop.pause()

    def collect(self) -> int:
        collected = 0
        self._awake = True
        while self._finished:
            run = self._finished.popleft()
            settlement = run.settlement._replace(token=_NO_TOKEN) if run.lost else run.settlement
            self._parts.exchange.held.ended(settlement)
            stopped = run.stopped_for is not Cancel.NONE
            if stopped and (run.interrupted or an_executor_is_at_work()):  # what it has begun may go on
                self._parts.fitness.replace(RecycleReason.INTERRUPTED)
            collected += 1
            del self._runs[run.key]
        if collected:
            self.done += collected
            self._runs.show()  # first: settling them may take long
        return collected

    def room(self) -> int:
        """How many jobs could begin now that have no limit."""
        runs = len(self._runs)
        if self._full and runs >= self._full:
            return 0
        self._full = 0
        return max(0, self._together() - runs)

    def take(self, claims: Sequence[Claim]) -> bool:
        """A job that ran beside others when a worker died has a limit: it runs beside fewer others the next time. What
        has ended before is committed first. The first that does not fit returns to the queue, with those behind it.
        """
        exchange, most = self._parts.exchange, self._parts.pool.concurrency
        held, limits = exchange.held, exchange.limits(claims) if claims else {}
        together, running = self._together(), len(self._runs)
        fitting: list[tuple[Claim, int]] = []
        while (claim := held.next()) is not None:
            if (other := self._runs.get((claim.job_id, claim.token))) is not None:
                # The job of that run was deleted, and a new job has its id and the same token. The new one goes back to
                # the queue, to be claimed with another token, and the outcome of the run is discarded.
                other.lost = True
                held.give_back([claim])
                continue
            limit = min(limits.get(claim.job_id, most), most)
            together = min(together, limit)
            if running + len(fitting) >= together or (limit < most and held.unsettled):
                self._full = together
                held.give_back([claim])
                held.release()
                break
            fitting.append((claim, limit))
        if fitting:
            self._begin(fitting)
        return bool(fitting)

    def _together(self) -> int:
        """How many may run at the same time beside those that run."""
        return min([run.together for run in self._runs.values()], default=self._parts.pool.concurrency)

    def rest(self) -> float:
        """Until a run has ended."""
        self._awake = False
        return 0.0 if self._finished else inf

    def check(self) -> None:
        """What differs while no job runs belongs to none. The main thread looks, unless it does not answer."""
        loop, fitness, looked = self._loop, self._parts.fitness, Future[None]()

        def look() -> None:
            if not looked.set_running_or_notify_cancel():
                return
            try:
                loop.tidy()
                if loop.changed:
                    loop.changed = False
                    fitness.report("the event loop")
                fitness.look(self.done)
                looked.set_result(None)
            except BaseException as error:
                looked.set_exception(error)

        loop.raw.call_soon_threadsafe(look, context=Variables())
        wait([looked], _MAIN_PATIENCE)
        if not looked.cancel():
            looked.result()

    def _begin(self, claims: Sequence[tuple[Claim, int]]) -> None:
        """Each with the number of jobs that may run while it does."""
        pool, executor = self._parts.pool, self._parts.executor
        board = executor.board
        assert isinstance(board, SlotBoard)
        at, alone = executor.clock(), not self._runs
        self._parts.slot.state(State.BUSY)
        new: list[ConcurrentRun] = []
        for claim, together in claims:
            run = ConcurrentRun(claim, self._runs, board, at, pool.timeout_of(claim.type), together)
            run.ctx = executor.context(claim, run)
            self._logs.begin(run, alone=alone and not new)
            new.append(run)
        self._runs.begin(new)  # before anything can happen to them
        self._calls.begin(new)
        self._watch.attend()

    # In any thread

    def _ended(self, run: ConcurrentRun, value: Any) -> None:
        """Its handler has returned this, or has raised it."""
        executor = self._parts.executor
        returned_fork.leave(value if isinstance(value, BaseException) else None)
        run.ctx._board = RUN_ENDED
        run.settlement = self._recorded(run, executor.outcome(run.claim, run.ctx, value, run.started_at))
        self._runs.end(run)
        self._finished.append(run)
        if not self._awake:
            self._awake = True
            self._parts.wakeups.wake()

    def _recorded(self, run: ConcurrentRun, settlement: Settlement) -> Settlement:
        """With what is known of the run alone: the CPU time and the memory are those of all of them."""
        duration, said = max(0.0, self._parts.executor.clock() - run.started_at), self._logs.end(run)
        if settlement.status is Status.PENDING and settlement.failure is None:
            return settlement
        if settlement.simple and duration < WORTH and said is None:
            return settlement
        return settlement._replace(usage=Usage(run.started_at, duration, log=said))


def an_executor_is_at_work() -> bool:
    """Whether a thread of an executor of `concurrent.futures` has work: it does not end with the task that waits for
    it.
    """
    code = _worker.__code__
    for innermost in sys._current_frames().values():
        frame = innermost.f_back
        while frame is not None and frame.f_code is not code:
            frame = frame.f_back
        if frame is not None and innermost.f_code is not code:
            return True
    return False
