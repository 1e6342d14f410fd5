"""Several jobs at the same time: begins them when there is room, and collects what has ended."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from time import monotonic
from typing import Any

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement, Usage
from supervisor.system.slot import Cancel, RecycleReason, State
from supervisor.worker import forked
from supervisor.worker.context import RUN_ENDED
from supervisor.worker.fitness import leave_ruined
from supervisor.worker.handler import Handler
from supervisor.worker.leftovers import an_executor_is_at_work
from supervisor.worker.loop import Parts
from supervisor.worker.recorder import WORTH, SlotBoard
from supervisor.worker.runners.concurrent.calls import Calls, MainThread
from supervisor.worker.runners.concurrent.run import ConcurrentRun, Key, RunBoard, RunLogs, Shown
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
        self._runs: dict[Key, ConcurrentRun] = {}
        self._finished: deque[ConcurrentRun] = deque()
        self._void: set[Key] = set()  # runs whose job was deleted
        self._awake = True
        self.done = 0
        self._main = MainThread(handler.event_loop, executor.log)
        self._calls = Calls(handler, executor, self._ended, uses_device=bool(pool.gpus))
        self._shown = Shown(parts.slot.work, self._runs)
        self._most = pool.concurrency
        self._full = 0  # with that many running a claim did not fit: none is claimed until there are fewer
        watch = Watch(
            parts.slot, parts.exchange, self._runs, self._shown, self._calls.stop, parts.heartbeat.wake, executor.log
        )
        self._reported = watch.reported
        self.watch: Callable[[float], float | None] = watch.look
        self.interrupt: Callable[[], None] = self._calls.interrupt
        self.running, self.detach = self._runs.keys, self._main.detach
        executor.timed_out = lambda claim: self._runs[claim.job_id, claim.token].stopped_for is Cancel.TIMEOUT

    def host(self, loop: Callable[[], None]) -> None:
        self._parts.slot.work.run_together(self._parts.pool.concurrency)
        self._handler.on_shared_loop = self._calls.wait_for_awaitable  # the set-up had the event loop for itself
        self._handler.event_loop.tidy()
        thread = threading.Thread(target=self._host, args=(loop,), name="claims", daemon=True)
        thread.start()
        self._main.serve()
        thread.join()

    def _host(self, loop: Callable[[], None]) -> None:
        executor = self._parts.executor
        try:
            loop()
        except BaseException as error:
            forked.leave(error)
            leave_ruined(error, self._parts.slot, executor.log)
        self._main.leave()

    # In the thread of the loop

    def collect(self) -> int:
        exchange, collected = self._parts.exchange, 0
        self._awake = True
        while self._finished:
            run = self._finished.popleft()
            key = (run.claim.job_id, run.claim.token)
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
        """What differs while no job runs belongs to none."""
        loop, fitness = self._handler.event_loop, self._parts.fitness

        def look() -> None:
            loop.tidy()
            if loop.changed:
                loop.changed = False
                fitness.report("the event loop")
            fitness.look(self.done)

        self._main.call(look, _MAIN_PATIENCE)

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
        new: dict[Key, ConcurrentRun] = {}
        for claim, together in claims:
            deadline = now + pool.timeout_of(claim.type)
            run = new[claim.job_id, claim.token] = ConcurrentRun(claim, now, at, deadline, together, pool.cancel_grace)
            run.ctx = executor.context(claim, RunBoard(board, run, self._shown.refresh, self._reported))
            self._logs.begin(run, alone=alone and len(new) == 1)
        self._shown.begin(new)  # before anything can happen to them
        self._calls.begin(new.values())
        self._reported()

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
