"""A worker: claim, execute, settle, until told to exit."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from functools import partial

# Imported by name, as in the executor: a handler that replaces them must not affect the loop.
from time import monotonic
from typing import TYPE_CHECKING

from supervisor.domain import middleware
from supervisor.domain.batching import Prefetch
from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim
from supervisor.store.base import Engine, WorkerRecord
from supervisor.system import failpoints, forkmark, settled_notice
from supervisor.system.claim_gate import ClaimGate
from supervisor.system.counters import Row
from supervisor.system.slot import Cancel, RecycleReason, Slot, State
from supervisor.telemetry import events
from supervisor.worker import descriptors, forked
from supervisor.worker.counting import Counter
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness, Ruined, leave_ruined
from supervisor.worker.heartbeat import HeartbeatThread, Watch
from supervisor.worker.live_progress import LiveProgress
from supervisor.worker.loader import AnyHandler, Handler, HandlerError, load
from supervisor.worker.memory_watch import MemoryWatch
from supervisor.worker.middleware import WorkerMiddleware
from supervisor.worker.placement import check_memory
from supervisor.worker.recorder import Recorder
from supervisor.worker.runner import Runner
from supervisor.worker.slot_board import SlotBoard
from supervisor.worker.trial import try_out
from supervisor.worker.wakeups import FOREIGN, Wakeups

if TYPE_CHECKING:
    from supervisor.config import PoolSettings
    from supervisor.worker.concurrent.loop import ConcurrentLoop

SAFETY_NET = 5.0  # seconds after which an idle worker checks for jobs without a wake-up
_EARLY_NOTICE = 0.9  # of max_jobs_per_worker: time to start a successor
EXIT_LEFT, EXIT_BROKEN = 0, 70


@dataclass(eq=False)
class Worker:
    """One worker process, from its set-up to its end. Created after the fork, in the main thread.

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
    _: KW_ONLY
    wake: int
    news: int
    gate: ClaimGate
    recorder: Recorder
    row: Row
    handler: AnyHandler | None = None
    device: str | None = None
    cautious: bool = False
    unproven: bool = False
    keep_done: bool = True
    on_beat: Callable[[], None] = lambda: None

    def __post_init__(self) -> None:
        self._counter = Counter(self.row, self.pool.types)
        self._log = events(pool=self.pool.name, worker=self.record.name)
        self._pace = Prefetch(self.pool.prefetch)
        self._growth = MemoryWatch(self.pool.max_memory)
        self._most = self.pool.max_jobs_per_worker or sys.maxsize
        self._slept = self._posted = False  # since the last round; woken by a post
        self._interrupt: Callable[[], None] = lambda: None  # the runner's, once there is one
        self._concurrent = self.pool.concurrency > 1 and not self.cautious
        self._side_by_side: ConcurrentLoop | None = None

    def run(self) -> int:
        """The whole life. Returns the process's exit code."""
        self._mark = forkmark.fork_mark()
        self.slot.occupy(os.getpid())
        with suppress(OSError):
            settled_notice.open_sender()
        forkmark.keep_from_forks(self.slot.memory)
        self._wakeups = Wakeups(self.slot, self.wake, lambda number, frame: self._interrupt())
        self._exchange = Exchange(
            self.engine,
            self.record,
            self.pool,
            self.slot,
            self.gate,
            self._counter,
            self._wakeups,
            self._log,
            side_by_side=self._concurrent,
            keep_done=self.keep_done,
        )
        forks = forked.Forks(self._wakeups.handlers, FOREIGN)
        os.register_at_fork(
            before=forks.before, after_in_parent=forks.after_in_parent, after_in_child=partial(self._detach, forks)
        )
        beat_every = min(self.pool.heartbeat_timeout / 4, 5.0)
        heartbeat = self._heartbeat = HeartbeatThread(
            self.slot, beat_every, self._exchange.aside, self.on_beat, self._watch()
        )
        descriptors.make_room(self.wake)  # before there are threads
        heartbeat.start()
        try:
            self._set_up()
        except (HandlerError, middleware.MiddlewareError, StoreError, Ruined) as error:
            self._end_fork(error)
            if isinstance(error, StoreError) and self._draining:
                self.slot.state(State.LEFT)  # told to exit while it waited for the database
                return EXIT_LEFT
            return self._broken(str(error))
        except BaseException as error:
            self._end_fork(error)
            traceback.print_exc()
            return self._broken(f"set-up failed: {type(error).__name__}: {error}")
        try:
            if self._side_by_side is not None:
                self._side_by_side.run()
            else:
                self._work()
        except BaseException as error:
            # Nothing is raised here while the process is intact, whatever a handler or a row does.
            self._end_fork(error)
            leave_ruined(error, self.slot, self._log)
        self._tear_down()
        heartbeat.stop()
        self.slot.state(State.LEFT)
        return EXIT_LEFT

    def _work(self) -> None:
        runner = self._runner
        while not self._draining and runner.done < self._most:
            claims = self._turn(self._want())
            if not claims and not self._fitness.seen_closely(runner.done):
                self._fitness.look(runner.done, closely=True)
            if not claims and not self._draining:
                self.slot.state(State.IDLE)
                self._slept = self._posted = False
                # A job may have arrived between the claim and the state "idle": check once more.
                claims = self._turn(self._want())
            if claims:
                self._wakeups.had_reason()
                self._execute(self._gather(claims) if self.pool.batch_size > 1 else claims)
            elif not (self._draining or self._exchange.unsure or self._exchange):
                self._sleep()
        self.slot.state(State.DRAINING)
        self._exchange.release()
        while self._exchange:
            self._turn(0)

    @property
    def _draining(self) -> bool:
        return self.slot.requests.drain_requested

    def _want(self) -> int:
        left = self._most - self._runner.done
        if self.pool.batch_size > 1 and not self.cautious:
            return min(self._runner.want, left)
        # The first job after a rest begins sooner if it is claimed alone.
        return 1 if self.cautious or self._slept else min(self._pace.want, left)

    def _gather(self, claims: list[Claim]) -> list[Claim]:
        """Wait up to batch_wait for a fuller batch. The worker counts as idle meanwhile, so that new jobs wake it."""
        until = monotonic() + self.pool.batch_wait
        self.slot.state(State.IDLE)
        while len(claims) < min(self._want(), self._runner.full) and not self._draining:
            claims += self._turn(self._want() - len(claims))
            left = until - monotonic()
            if left <= 0 or len(claims) >= min(self._want(), self._runner.full):
                break
            self._sleep(left)
        return claims

    def _turn(self, want: int) -> list[Claim]:
        if not self._mark[0]:
            forked.end()
        return self._exchange.turn(want, posted=self._posted)

    def _failed(self, error: StoreError) -> None:
        """The cause of an error of the database may be in our own process."""
        if self._side_by_side is not None:
            self._side_by_side.look_for_cause()
        elif self._fitness.look(self._runner.done):
            raise Ruined(f"a handler has changed the process permanently, and {error}") from None

    def _execute(self, claims: list[Claim]) -> None:
        limits = self._exchange.limits(claims) if self.pool.batch_size > 1 else {}
        fitness, runner = self._fitness, self._runner
        if self.cautious and (seconds := fitness.leftovers.dangerous_for(monotonic())):
            self._wakeups.pause(seconds)  # let leftovers do their harm while no job runs
        slept, self._slept = self._slept, False
        self._posted = False
        self.slot.state(State.BUSY)
        began = monotonic()
        if len(claims) > 1:
            self._heartbeat.batch(began)
        if not slept:
            self.recorder.read_meters(began)
        count = runner.run_all(limits, slept)
        now = monotonic()
        fitness.leftovers.rest(now)
        self._pace.observe(count, now - began)
        if runner.done >= self._most * _EARLY_NOTICE:
            fitness.request_recycle(RecycleReason.OLD)
        elif self._growth.beyond_limit(began, now):
            fitness.request_recycle(self._growth.reason)
        if fitness.due(runner.done, now):
            fitness.look(runner.done)

    def _commit(self) -> None:
        """In the middle of a round."""
        self._turn(0)

    def _leave_soon(self) -> None:
        self.slot.requests.drain()
        self._exchange.release()

    def _sleep(self, most: float = SAFETY_NET) -> None:
        self.recorder.read_meters(monotonic())
        self._posted = self._wakeups.sleep(most)
        self._slept = True

    # The ends

    def _set_up(self) -> None:
        self._exchange.open()
        self._fitness = Fitness(self.slot, self.news, self._log, self._leave_soon)
        self._exchange.closed, self._exchange.failed = self._fitness.closed, self._failed
        handler = self.handler or load(self.pool.handler)
        if self.pool.batch_size > 1 and isinstance(handler, Handler):
            handler.insist_on_batches()
        if isinstance(handler, Handler):
            handler.insist_on(self.pool.types)
        info = middleware.WorkerInfo(self.pool.name, self.record.name, self._log)
        loaded = middleware.load([*self.pool.middleware, *getattr(handler, "middleware", ())])
        self._middleware = WorkerMiddleware(loaded, info, self._mark) if loaded else None
        self._executor = Executor(
            handler,
            SlotBoard(self.slot, self.recorder, self._mark, self.engine, self._heartbeat.progress_reported),
            self.pool.policy,
            capabilities=self.pool.capabilities,
            options=self.pool.options,
            device=self.device,
            timeout=self.pool.timeout_of,
            timed_out=lambda claim: self.slot.requests.cancel_requested(claim.job_id, claim.token) is Cancel.TIMEOUT,
            exhausted=self._fitness.out_of_memory,
            out_of_files=self._out_of_files,
            mark=self._mark,
            recorder=self.recorder,
            middleware=self._middleware,
            log=self._log,
            clock=self.gate.clock,
        )
        self.handler = handler
        self._runner = Runner(
            self.pool,
            self.slot,
            self._exchange,
            self._heartbeat,
            self._executor,
            self._fitness,
            commit=self._commit,
            cautious=self.cautious,
        )
        self._interrupt = self._runner.interrupt
        if self._concurrent:
            self._set_up_concurrency(handler)
        failpoints.reach("set_up.before")
        ctx = self._executor.context()
        if self._middleware is not None:
            self._middleware.set_up()
        handler.setup(ctx)
        self._end_fork()
        ctx.close()
        try_out(self._executor, self.pool, self.slot, self._mark, unproven=self.unproven)
        failpoints.reach("set_up")
        check_memory(self.pool.max_memory)
        self._fitness.set_up(handler, self._wakeups.handlers, self._wakeups.descriptor)
        self._wakeups.wait_to_be_watched()
        self._wakeups.wait_to_serve(self.news, spare=self.pool.spares > 0)

    def _watch(self) -> Watch:
        if not self._concurrent:
            return LiveProgress(self.slot, self._exchange)
        from supervisor.worker.concurrent.watch import ConcurrentWatch  # imported here: few pools need it

        self._concurrent_watch = ConcurrentWatch(self.slot, self._exchange, self.engine, self.record, self._log)
        return self._concurrent_watch

    def _set_up_concurrency(self, handler: AnyHandler) -> None:
        from supervisor.worker.concurrent.build import build

        self._side_by_side = build(
            self.pool, self.slot, handler, self._executor, self._exchange, self._fitness, self._heartbeat,
            self._concurrent_watch, wakeups=self._wakeups,
        )  # fmt: skip
        self._interrupt = self._side_by_side.runner.interrupt_main

    def _out_of_files(self, error: BaseException) -> bool:
        if self._side_by_side is None:
            return self._fitness.out_of_files(error, self._runner.done)
        self._fitness.out_of_files(error, self._side_by_side.done)
        return False  # the files may be those of jobs that run beside it: it fails as any other

    def _broken(self, why: str) -> int:
        self.slot.give_up(why)
        return EXIT_BROKEN

    def _end_fork(self, error: BaseException | None = None) -> None:
        """Continue only if this is the worker and not a process that a handler has forked."""
        if not self._mark[0]:
            forked.end(error)

    def _detach(self, forks: forked.Forks) -> None:
        """In a process that a handler forks: release everything that it shares with the worker."""
        self.slot.detach()
        self.row.detach()
        if self._side_by_side is not None:
            self._side_by_side.runner.detach()
        forks.after_in_child()

    def _tear_down(self) -> None:
        assert self.handler is not None
        self._fitness.cease()
        try:
            self.handler.teardown(self._executor.context())
            self._end_fork()
        except BaseException as error:
            self._end_fork(error)
            self._log.warning("teardown_failed", error=repr(error), exc_info=True)
        if self._middleware is not None:
            self._middleware.tear_down()
        self._exchange.close()
