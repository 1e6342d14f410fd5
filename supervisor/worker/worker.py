"""The life of a worker process: what it is given, its set-up, its loop, its teardown."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.domain import middleware
from supervisor.domain.errors import StoreError
from supervisor.store.base import Engine, WorkerRecord
from supervisor.system import descriptors, failpoints, mappings, settled_notice
from supervisor.system.counters import Row
from supervisor.system.scoreboard import ClaimGate
from supervisor.system.slot import Slot, State
from supervisor.telemetry import events
from supervisor.worker import returned_fork
from supervisor.worker.environment import check_memory
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness, Ruined, leave_ruined
from supervisor.worker.handler import AnyHandler, Handler, HandlerError
from supervisor.worker.heartbeat import Heartbeat
from supervisor.worker.loader import load
from supervisor.worker.loop import Loop, Parts, Runner
from supervisor.worker.middleware import WorkerMiddleware
from supervisor.worker.recorder import Recorder, RunCounter, SlotBoard
from supervisor.worker.runners import runner_of
from supervisor.worker.trial import try_out
from supervisor.worker.wakeups import FOREIGN, Wakeups

if TYPE_CHECKING:
    from supervisor.config import PoolSettings

EXIT_LEFT, EXIT_BROKEN = 0, 70


class Assignment(NamedTuple):
    """What one worker is and should do, and where it shows it.

    `wake` is the pool's eventfd, on which it sleeps; `news` is the supervisor's, by which it announces that its slot
    has changed. It claims while the `gate` is open. `recorder` keeps what runs use and print, `row` counts them.
    A `cautious` one claims one job at a time, checks its process and commits before the next, so that a death shows
    which job caused it. An `unproven` one has code of which no worker has been ready yet. Without `keep_done`, jobs may
    be deleted when they have succeeded. `on_beat` is called with every heartbeat, by another thread.
    """

    pool: PoolSettings
    record: WorkerRecord
    engine: Engine
    slot: Slot
    wake: int
    news: int
    gate: ClaimGate
    recorder: Recorder
    row: Row
    device: str | None = None
    cautious: bool = False
    unproven: bool = False
    keep_done: bool = True
    on_beat: Callable[[], None] = lambda: None


class Worker:
    """One worker process. Created after the fork, in the main thread. `handler` has already been set up, or is loaded
    here.
    """

    def __init__(self, assignment: Assignment, handler: AnyHandler | None = None) -> None:
        self._assignment = assignment
        self._slot = assignment.slot
        self._handler = handler
        self._log = events(pool=assignment.pool.name, worker=assignment.record.name)
        self._runner: Runner | None = None

    def run(self) -> int:
        """The whole life. Returns the process's exit code."""
        assignment, slot, log = self._assignment, self._slot, self._log
        returned_fork.protect()
        slot.page.pid = os.getpid()
        slot.beat()
        with suppress(OSError):
            settled_notice.open_sender()
        mappings.keep_from_forks(slot.memory)
        wakeups = Wakeups(slot, assignment.wake, lambda number, frame: self._interrupt())
        exchange = Exchange(
            assignment.engine,
            assignment.record,
            assignment.pool,
            slot,
            assignment.gate,
            RunCounter(assignment.row),
            wakeups,
            log,
            keep_done=assignment.keep_done,
        )
        forks = returned_fork.Forks(wakeups.handlers, FOREIGN)
        os.register_at_fork(
            before=forks.before, after_in_parent=forks.after_in_parent, after_in_child=partial(self._detach, forks)
        )
        heartbeat = Heartbeat(slot, min(assignment.pool.heartbeat_timeout / 4, 5.0), assignment.on_beat)
        descriptors.make_room(assignment.wake)  # before there are threads
        heartbeat.start()
        try:
            parts = self._set_up(exchange, heartbeat, wakeups)
        except (HandlerError, middleware.MiddlewareError, StoreError, Ruined) as error:
            returned_fork.leave(error)
            if isinstance(error, StoreError) and slot.page.drain:
                slot.state(State.LEFT)  # told to exit while it waited for the database
                return EXIT_LEFT
            return self._broken(str(error))
        except BaseException as error:
            returned_fork.leave(error)
            traceback.print_exc()
            return self._broken(f"set-up failed: {type(error).__name__}: {error}")
        assert self._runner is not None
        try:
            self._runner.host(Loop(parts, self._runner).run)
        except BaseException as error:
            # Nothing is raised here while the process is intact, whatever a handler or a row does.
            returned_fork.leave(error)
            leave_ruined(error, slot, log)
        self._tear_down(parts)
        exchange.close()
        heartbeat.stop()
        slot.state(State.LEFT)
        return EXIT_LEFT

    def _set_up(self, exchange: Exchange, heartbeat: Heartbeat, wakeups: Wakeups) -> Parts:
        def leave_soon() -> None:
            slot.page.drain = 1
            exchange.held.release()

        assignment, pool, slot = self._assignment, self._assignment.pool, self._slot
        exchange.open()
        fitness = Fitness(slot, assignment.news, self._log, leave_soon)
        handler = self._handler = self._handler or load(pool.handler)
        executor = executor_of(assignment, handler, self._log)
        executor.exhausted = fitness.out_of_memory
        parts = Parts(pool, slot, exchange, executor, fitness, heartbeat, wakeups, assignment.cautious)
        runner = self._runner = runner_of(parts.pool, cautious=parts.cautious)(parts)
        heartbeat.watch = runner.watch
        failpoints.reach("set_up.before")
        ctx = executor.context()
        if executor.middleware is not None:
            executor.middleware.set_up()
        handler.setup(ctx)
        returned_fork.leave()
        ctx.close()
        try_out(executor, pool, slot, unproven=assignment.unproven)
        failpoints.reach("set_up")
        check_memory(pool.max_memory)
        fitness.set_up(wakeups.needed, wakeups.descriptor)
        wakeups.wait_to_serve(assignment.news, spare=pool.spares > 0)
        return parts

    def _tear_down(self, parts: Parts) -> None:
        executor = parts.executor
        try:
            executor.handler.teardown(executor.context())
            returned_fork.leave()
        except BaseException as error:
            returned_fork.leave(error)
            self._log.warning("teardown_failed", error=repr(error), exc_info=True)
        if executor.middleware is not None:
            executor.middleware.tear_down()

    def _broken(self, why: str) -> int:
        self._slot.tell(why)
        self._slot.state(State.BROKEN)
        return EXIT_BROKEN

    def _interrupt(self) -> None:
        if self._runner is not None:
            self._runner.interrupt()

    def _detach(self, forks: returned_fork.Forks) -> None:
        """In a process that a handler forks: release everything that it shares with the worker."""
        self._slot.detach()
        self._assignment.row.detach()
        if self._runner is not None:
            self._runner.detach()
        forks.after_in_child()


def executor_of(assignment: Assignment, handler: AnyHandler, log: Any) -> Executor:
    """Raises HandlerError if the handler cannot do what the pool needs, and MiddlewareError."""
    pool, recorder = assignment.pool, assignment.recorder
    if isinstance(handler, Handler):
        if pool.batch_size > 1:
            handler.insist_on_batches()
        handler.insist_on(pool.types)
    loaded = middleware.load([*pool.middleware, *getattr(handler, "middleware", ())])
    info = middleware.WorkerInfo(pool.name, assignment.record.name, log)
    return Executor(
        handler,
        SlotBoard(assignment.slot, recorder, assignment.engine),
        pool.policy,
        capabilities=pool.capabilities,
        options=pool.options,
        device=assignment.device,
        timeout=pool.timeout_of,
        recorder=recorder,
        middleware=WorkerMiddleware(loaded, info) if loaded else None,
        log=log,
        clock=assignment.gate.clock,
    )
