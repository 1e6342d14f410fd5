"""Several jobs at the same time: begins them when there is room, and collects what has ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextvars import Context as Variables
from math import inf
from operator import attrgetter
from threading import Lock
from time import monotonic
from typing import Any

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement, Usage
from supervisor.system.slot import Cancel, RecycleReason, Slot, State
from supervisor.worker import forked
from supervisor.worker.context import RUN_ENDED
from supervisor.worker.exchange import Run
from supervisor.worker.fitness import Ruined, an_executor_is_at_work, leave_ruined
from supervisor.worker.handler import Handler
from supervisor.worker.loop import Parts
from supervisor.worker.recorder import WORTH, SlotBoard
from supervisor.worker.runners.concurrent.calls import Calls, ConcurrentRun, RunLogs
from supervisor.worker.runners.concurrent.watch import Watch

_NO_TOKEN = 0  # no claim has it
_MAIN_PATIENCE = 1.0  # seconds in which the main thread should answer while no job runs


class Concurrent:
    """Implements `Runner`. `_runs` are those that have begun and were not collected; the thread of the loop alone
    changes it. `_finished` are those of them that have ended. Created in the main thread, when the handler is loaded.
    """

    def __init__(self, parts: Parts) -> None:
        pool, executor = parts.pool, parts.executor
        handler, logs = executor.handler, executor.recorder.run_log
        assert isinstance(handler, Handler)  # a program is given one job at a time
        assert isinstance(logs, RunLogs)
        self._parts = parts
        self._handler, self._logs = handler, logs
        self._loop = handler.event_loop
        self._main = threading.get_ident()
        self._runs: dict[Run, ConcurrentRun] = {}
        self._finished: deque[ConcurrentRun] = deque()
        self._void: set[Run] = set()  # runs whose job was deleted
        self._awake = True
        self._left = False
        self.done = 0
        self._calls = Calls(handler, executor, self._ended, uses_device=bool(pool.gpus))
        self._shown = Shown(parts.slot, self._runs)
        self._most = pool.concurrency
        self._full = 0  # with that many running a claim did not fit: none is claimed until there are fewer
        self._watch = Watch(parts, self._runs, self._shown.refresh, self._calls.stop)
        self.watch: Callable[[float], float | None] = self._watch.look
        self.interrupt: Callable[[], None] = self._calls.interrupt
        self.running = self._runs.keys
        executor.timed_out = lambda claim: self._runs[claim.job_id, claim.token].stopped_for is Cancel.TIMEOUT

    # In the main thread

    def host(self, loop: Callable[[], None]) -> None:
        self._parts.slot.page.concurrency = self._most
        self._handler.shares_loop = True  # the set-up had the event loop for itself
        self._loop.tidy()
        thread = threading.Thread(target=self._host, args=(loop,), name="claims", daemon=True)
        thread.start()
        self._serve()
        thread.join()

    def _serve(self) -> None:
        """Run the event loop until the worker leaves. Raises Ruined if a job has broken it."""
        while not self._left:
            try:
                self._loop.serve()
            except BaseException as error:
                forked.leave()
                if isinstance(error, Exception):  # the loop is broken: what a job raises there ends in the loop
                    raise Ruined(f"a handler has broken the event loop: {error}") from None
                # raised by what a job has started
                self._parts.executor.log.warning("event_loop_interrupted", error=repr(error))
            forked.leave()

    def detach(self) -> None:
        """In a process that a handler has forked: the other jobs are not its own."""
        if threading.get_ident() == self._main:
            self._loop.detach()

    # In the thread of the loop

    def _host(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except BaseException as error:
            forked.leave(error)
            leave_ruined(error, self._parts.slot, self._parts.executor.log)
        self._left = True
        self._loop.pause()

    def collect(self) -> int:
        exchange, collected = self._parts.exchange, 0
        self._awake = True
        while self._finished:
            run = self._finished.popleft()
            key = run.key
            if key in self._void:
                self._void.discard(key)
                run.settlement = run.settlement._replace(token=_NO_TOKEN)  # the claim was lost
            exchange.held.ended(run.settlement)
            stopped = run.stopped_for is not Cancel.NONE
            if stopped and (run.interrupted or an_executor_is_at_work()):  # what it has begun may go on
                self._parts.fitness.replace(RecycleReason.INTERRUPTED)
            collected += 1
            del self._runs[key]
        if collected:
            self.done += collected
            self._shown.refresh()  # first: settling them may take long
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
        exchange, most = self._parts.exchange, self._most
        held, limits = exchange.held, exchange.limits(claims) if claims else {}
        together, running = self._together(), len(self._runs)
        fitting: list[tuple[Claim, int]] = []
        while (claim := held.next()) is not None:
            if self._is_void(claim):
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
        return min([run.together for run in self._runs.values()], default=self._most)

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

    def _is_void(self, claim: Claim) -> bool:
        """Whether a run of ours has its id and token: its job was deleted, and another was given its id, whose tokens
        began anew. That one goes back, for a claim with another token, and the outcome of the run is discarded.
        """
        key = (claim.job_id, claim.token)
        if key not in self._runs:
            return False
        self._void.add(key)
        self._parts.exchange.held.give_back([claim])
        return True

    def _begin(self, claims: Sequence[tuple[Claim, int]]) -> None:
        """Each with the number of jobs that may run while it does."""
        pool, executor = self._parts.pool, self._parts.executor
        board = executor.board
        assert isinstance(board, SlotBoard)
        now, at, alone = monotonic(), executor.clock(), not self._runs
        self._parts.slot.state(State.BUSY)
        new: dict[Run, ConcurrentRun] = {}
        for claim, together in claims:
            limits = pool.timeout_of(claim.type), pool.cancel_grace, together
            run = ConcurrentRun(claim, board, now, at, *limits, self._shown.refresh, self._watch.attend)
            run.ctx = executor.context(claim, run)
            new[run.key] = run
            self._logs.begin(run, alone=alone and len(new) == 1)
        self._shown.begin(new)  # before anything can happen to them
        self._calls.begin(new.values())
        self._watch.attend()

    # In any thread

    def _ended(self, run: ConcurrentRun, value: Any) -> None:
        """Its handler has returned this, or has raised it."""
        executor = self._parts.executor
        forked.leave(value if isinstance(value, BaseException) else None)
        run.ctx._board = RUN_ENDED
        run.settlement = self._recorded(run, executor.outcome(run.claim, run.ctx, value, run.started_at))
        self._shown.end(run)
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


class Shown:
    """How many runs there are, and the one that must end first, in the worker's slot: the supervisor kills the worker
    if that run does not end in time. May be used by any thread, but `begin` by that of the loop, which alone adds to
    `runs`.
    """

    def __init__(self, slot: Slot, runs: dict[Run, ConcurrentRun]) -> None:
        self._slot = slot
        self._runs = runs
        self._lock = Lock()
        self._shown: ConcurrentRun | None = None
        self._running = self._ended = 0  # runs; changed under the lock

    def begin(self, new: dict[Run, ConcurrentRun]) -> None:
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
                self._slot.page.deadline = 0.0  # its limit is over; the next one is shown in a moment
            self._slot.end(self._ended, run.key, self._running)

    def refresh(self) -> None:
        with self._lock:
            runs = [run for run in list(self._runs.values()) if not run.ended]
            first = min(runs, key=attrgetter("must_end"), default=None)
            self._shown = first
            if first is None:
                self._slot.show((0, 0, 0.0, 0.0), 0)
                return
            self._slot.show((*first.key, first.started, first.deadline), len(runs))
