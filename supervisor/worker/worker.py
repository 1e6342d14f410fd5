"""A worker: claim, execute, settle, until told to exit."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from functools import partial

# Imported by name, as in the executor: a handler that replaces them must not affect the loop.
from time import monotonic, time
from types import FrameType
from typing import TYPE_CHECKING

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim
from supervisor.domain.prefetch import Pace
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Engine, JobSelector, WorkerRecord
from supervisor.system import failpoints, forkmark
from supervisor.system.counters import Row
from supervisor.system.slot import Cancel, RecycleReason, Slot, State
from supervisor.telemetry import events
from supervisor.worker import forked
from supervisor.worker.claim_buffer import ClaimBuffer
from supervisor.worker.context import JobInterrupted
from supervisor.worker.counting import Counter
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness
from supervisor.worker.hand_back import HandBack
from supervisor.worker.heartbeat import HeartbeatThread
from supervisor.worker.live_progress import LiveProgress
from supervisor.worker.loader import AnyHandler, Handler, HandlerError, load
from supervisor.worker.memory_watch import MemoryWatch
from supervisor.worker.placement import check_memory
from supervisor.worker.process_check import ProcessCheck, Ruined, leave_ruined
from supervisor.worker.recorder import Recorder
from supervisor.worker.slot_board import SlotBoard
from supervisor.worker.spare_store import SpareStore
from supervisor.worker.store_outage import StoreOutage, registered
from supervisor.worker.telling import Telling
from supervisor.worker.wakeups import FOREIGN, Wakeups

if TYPE_CHECKING:
    from supervisor.config import PoolSettings

SAFETY_NET = 5.0  # seconds after which an idle worker checks for jobs without a wake-up
_EARLY_NOTICE = 0.9  # of max_jobs_per_worker: time to start a successor
_MANY_CHILDREN = 1000  # jobs that the runs of one round may enqueue together before they are committed
EXIT_LEFT, EXIT_BROKEN = 0, 70


class Worker:
    """One worker process, from its set-up to its end. Created after the fork, in the main thread.

    `wake` is the pool's eventfd, on which it sleeps; `news` is the supervisor's, by which it announces that its slot
    has changed. `recorder` keeps what runs use and print, `row` counts them. A `cautious` one claims one job at a time,
    checks its process and commits before the next, so that a death shows which job caused it.
    `on_beat` is called with every heartbeat, by another thread.
    """

    def __init__(
        self,
        pool: PoolSettings,
        record: WorkerRecord,
        engine: Engine,
        slot: Slot,
        *,
        wake: int,
        news: int,
        recorder: Recorder,
        row: Row,
        handler: AnyHandler | None = None,
        device: str | None = None,
        cautious: bool = False,
        on_beat: Callable[[], None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._record = record
        self._engine = engine
        self._slot = slot
        self._wake = wake
        self._news = news
        self._recorder = recorder
        self._row = row
        self._counter = Counter(row, pool.types)
        self._cautious = cautious
        self._on_beat = on_beat
        self._handler = handler
        self._device = device
        self._log = events(pool=pool.name, worker=record.name)
        self._tell = Telling(pool.retry, self._log)
        self._wanted = JobSelector(pool.types, " ".join(pool.capabilities))
        self._pace = Pace(pool.prefetch)
        self._growth = MemoryWatch(pool.max_memory)
        self._buffer = ClaimBuffer()
        self._done = 0
        self._settled = 0  # of these: committed by the main thread
        self._enqueued = 0  # jobs, by the runs of the current round
        self._draining = False
        self._slept = False
        self._running: Claim | None = None
        self._interrupted: tuple[int, int] | None = None
        self._unsure = False  # a claim failed, or only its answer was lost: we may hold claims that we do not know of

    def run(self) -> int:
        """The whole life. Returns the process's exit code."""
        self._mark = forkmark.fork_mark()
        self._slot.occupy(os.getpid())
        forkmark.keep_from_forks(self._slot.memory)
        self._wakeups = Wakeups(self._slot, self._wake, self._interrupt)
        self._outage = StoreOutage(self._slot, self._counter, self._wakeups, self._log)
        forks = forked.Forks(self._wakeups.handlers, FOREIGN)
        os.register_at_fork(
            before=forks.before,
            after_in_parent=forks.after_in_parent,
            after_in_child=partial(self._detach, forks),
        )
        beat_every = min(self._pool.heartbeat_timeout / 4, 5.0)
        spare = SpareStore(self._engine, self._record.incarnation, min(0.5, beat_every), lambda: self._closed())
        self._hand_back = HandBack(spare.settle, self._buffer, self._slot, self._counter, self._tell, self._log)
        heartbeat = self._heartbeat = HeartbeatThread(
            self._slot, beat_every, self._hand_back, self._on_beat, LiveProgress(self._slot, spare)
        )
        heartbeat.start()
        try:
            self._set_up()
        except (HandlerError, StoreError, Ruined) as error:
            self._end_fork(error)
            if isinstance(error, StoreError) and self._slot.requests.drain_requested:
                self._slot.state(State.LEFT)  # told to exit while it waited for the database
                return EXIT_LEFT
            return self._broken(str(error))
        except BaseException as error:
            self._end_fork(error)
            traceback.print_exc()
            return self._broken(f"set-up failed: {type(error).__name__}: {error}")
        try:
            self._work()
        except BaseException as error:
            # Nothing is raised here while the process is intact, whatever a handler or a row does.
            self._end_fork(error)
            leave_ruined(error, self._slot, self._log)
        self._tear_down()
        heartbeat.stop()
        self._slot.state(State.LEFT)
        return EXIT_LEFT

    def _work(self) -> None:
        while not self._draining and self._done < self._pool.max_jobs_per_worker:
            claims = self._exchange(self._want())
            if not claims and not self._check.seen_closely(self._done):
                self._fitness.look(self._done, closely=True)
            if not claims and not self._draining:
                self._slot.state(State.IDLE)
                self._slept = False
                # A job may have arrived between the claim and the state "idle": check once more.
                claims = self._exchange(self._want())
            if claims:
                self._execute(claims)
            elif not self._draining:
                self._sleep()
        self._slot.state(State.DRAINING)
        self._heartbeat.cease()
        while self._buffer:
            self._exchange(0)
        self._tell.rest()

    def _want(self) -> int:
        if self._cautious or self._slept:  # the first job after a rest begins sooner if it is claimed alone
            return 1
        return min(self._pace.want, self._pool.max_jobs_per_worker - self._done)

    def _exchange(self, want: int, gathered: int = 0) -> list[Claim]:
        """Settle what is finished and claim more, besides the `gathered` ones. Waits while the database fails."""
        if not self._mark[0]:
            forked.end()
        if self._closed():  # otherwise SQLite might write to what a handler has opened in place of its files
            raise Ruined("a handler has closed all descriptors, the worker's own with them")
        (settlements, runs), now = self._buffer.collect(), time()
        try:
            exchange = self._store.settle_and_claim(
                self._record.incarnation, settlements, self._wanted, want, self._pool.lock_time, now
            )
        except StoreError as error:
            self._buffer.put_back(settlements, runs)
            self._unsure = self._unsure or want > 0
            if self._fitness.look(self._done):  # the cause may be in our own process
                raise Ruined(f"a handler has changed the process permanently, and {error}") from None
            self._wait_out(error)
            return []
        if self._outage.on:
            self._outage.over()
        if settlements:
            if runs:
                self._settled += runs
                self._slot.work.settle(self._settled)
            self._counter.settled(settlements, exchange.lost, now, bool(exchange.claims))
        self._tell(settlements, exchange)
        claims = exchange.claims
        if self._unsure and want and not gathered:  # otherwise nobody would run them
            claims = self._held(claims)
        self._slot.work.hold(len(claims))
        return claims

    def _held(self, claims: list[Claim]) -> list[Claim]:
        """Add other claims that the table has for us: an earlier claim was committed, but its answer was lost.

        No other worker would ever run them, since their locks are renewed as long as this worker lives.
        """
        if self._hand_back.active or self._buffer:
            return claims
        try:
            held = self._store.held_by(self._record.incarnation)
        except StoreError:
            return claims
        self._unsure = False
        known = {claim.job_id for claim in claims}
        return claims + [claim for claim in held if claim.job_id not in known]

    def _execute(self, claims: list[Claim]) -> None:
        if self._cautious and (seconds := self._fitness.leftovers.dangerous_for(monotonic())):
            self._wakeups.pause(seconds)  # let leftovers do their harm while no job runs
        self._slept = False
        requests, buffer, heartbeat = self._slot.requests, self._buffer, self._heartbeat
        self._slot.state(State.BUSY)
        began = monotonic()
        if len(claims) > 1:
            heartbeat.batch(began)
        self._recorder.hand(began)
        self._enqueued = 0
        buffer.take(claims)
        count = 0
        if requests.drain_requested:  # between claim and start
            self._release_if_draining()
        while ran := self._run_next():
            count += ran
            if requests.drain_requested:
                self._release_if_draining()
        heartbeat.job(0.0)
        now = monotonic()
        self._fitness.leftovers.rest(now)
        self._pace.observe(count, now - began)
        if self._done >= self._pool.max_jobs_per_worker * _EARLY_NOTICE:
            self._fitness.request_recycle(RecycleReason.OLD)
        elif self._growth.beyond_limit(began, now):
            self._fitness.request_recycle(RecycleReason.LARGE)
        if self._check.due(self._done, now):
            self._fitness.look(self._done)

    def _run_next(self) -> int:
        """Run the next of the claims held. Returns the number of jobs run."""
        claim = self._buffer.next()
        if claim is None:
            return 0
        settlement = self._run_one(claim)
        self._buffer.finish(settlement)
        if settlement.children:
            self._commit_many(len(settlement.children))
        return 1

    def _commit_many(self, children: int) -> None:
        """Keep what the runs of a round enqueue from adding up to a transaction that blocks other writers."""
        self._enqueued += children
        if self._enqueued >= _MANY_CHILDREN:
            self._exchange(0)
            self._slot.work.hold(self._buffer.waiting)

    def _begin(self, claim: Claim, batch: int = 1) -> None:
        """Show that a run starts: of a job, or of a batch of this size whose first job it is."""
        started, work = monotonic(), self._slot.work
        work.forget_progress()
        doubtful = self._fitness.leftovers.new(started)
        work.begin(claim.job_id, claim.token, started, started + self._pool.timeout, batch, doubtful=doubtful)
        self._heartbeat.job(started)
        self._running = claim

    def _run_one(self, claim: Claim) -> Settlement:
        try:
            self._begin(claim)
            settlement = self._executor.run(claim)
            self._running = None
        except JobInterrupted as error:
            # Raised just before the handler was called, or just after it returned.
            settlement = self._executor.interrupted(claim, error, time())
            self._running = None
        self._done += 1
        self._slot.work.finish(self._done)
        if settlement.failure is not None or settlement.usage is not None or self._cautious:
            self._fitness.after(settlement, self._done, always=self._cautious)
        if self._changing.changes is not None:
            self._fitness.see_handler()
        return settlement

    def _leave_soon(self) -> None:
        self._draining = True
        self._buffer.release()

    # Sleeping and signals

    def _sleep(self, most: float = SAFETY_NET) -> None:
        self._wakeups.sleep(most)
        self._slept = True
        self._check_drain()

    def _wait_out(self, error: StoreError) -> None:
        self._outage.wait(error)
        self._check_drain()

    def _check_drain(self) -> None:
        if self._slot.requests.drain_requested:
            self._draining = True

    def _release_if_draining(self) -> None:
        """When told to exit, return what has not started."""
        self._check_drain()
        if self._draining:
            self._buffer.release()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The only handler that does more than record: only an exception can end a loop in the handler's code."""
        claim = self._running
        if claim is None or self._interrupted == (claim.job_id, claim.token):
            return
        if self._slot.requests.cancel_requested(claim.job_id, claim.token) is not Cancel.NONE:
            self._interrupted = (claim.job_id, claim.token)
            raise JobInterrupted

    # The ends

    def _set_up(self) -> None:
        self._store = registered(self._engine, self._record, self._outage, lambda: self._slot.requests.drain_requested)
        self._check = ProcessCheck()
        self._closed = self._check.closed
        self._fitness = Fitness(self._check, self._slot, self._news, self._log, self._leave_soon)
        handler = self._handler or load(self._pool.handler)
        if self._pool.batch_size > 1 and isinstance(handler, Handler):
            handler.insist_on_batches()
        self._executor = Executor(
            handler,
            SlotBoard(self._slot, self._recorder, self._mark, self._engine, self._heartbeat.progress_reported),
            self._pool.retry,
            capabilities=self._pool.capabilities,
            options=self._pool.options,
            device=self._device,
            timeout=self._pool.timeout,
            timed_out=lambda claim: self._slot.requests.cancel_requested(claim.job_id, claim.token) is Cancel.TIMEOUT,
            exhausted=self._fitness.out_of_memory,
            out_of_files=lambda error: self._fitness.out_of_files(error, self._done),
            mark=self._mark,
            max_crashes=self._pool.max_crashes,
            recorder=self._recorder,
            log=self._log,
        )
        self._handler = self._changing = handler
        failpoints.reach("set_up.before")
        ctx = self._executor.context()
        handler.setup(ctx)
        self._end_fork()
        ctx.close()
        failpoints.reach("set_up")
        check_memory(self._pool.max_memory)
        self._check.set_up(self._wakeups.handlers, self._wakeups.descriptor)
        self._fitness.set_up(handler)
        self._wakeups.wait_to_be_watched()
        self._check_drain()
        self._slot.state(State.IDLE)
        os.eventfd_write(self._news, 1)

    def _broken(self, why: str) -> int:
        self._slot.give_up(why)
        return EXIT_BROKEN

    def _end_fork(self, error: BaseException | None = None) -> None:
        """Continue only if this is the worker and not a process that a handler has forked."""
        if not self._mark[0]:
            forked.end(error)

    def _detach(self, forks: forked.Forks) -> None:
        """In a process that a handler forks: release everything that it shares with the worker."""
        self._slot.detach()
        self._row.detach()
        forks.after_in_child()

    def _tear_down(self) -> None:
        assert self._handler is not None
        try:
            self._handler.teardown(self._executor.context())
            self._end_fork()
        except BaseException as error:
            self._end_fork(error)
            self._log.warning("teardown_failed", error=repr(error), exc_info=True)
        self._store.close()
