"""A worker: claim, execute, settle, until told to leave."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import time
import traceback
from types import FrameType
from typing import TYPE_CHECKING, Any

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim
from supervisor.domain.prefetch import Pace
from supervisor.store.base import Claims, Engine, Wanted, WorkerRecord
from supervisor.system import failpoints, signals
from supervisor.system.scoreboard import Cancel, Slot, State, Worn
from supervisor.system.tallies import Row
from supervisor.telemetry import events
from supervisor.worker.context import JobInterrupted
from supervisor.worker.counting import Counter
from supervisor.worker.executor import Executor
from supervisor.worker.growth import Growth
from supervisor.worker.hand import Hand
from supervisor.worker.loader import AnyHandler, Handler, HandlerError, load
from supervisor.worker.place import check_memory
from supervisor.worker.pulse import Pulse
from supervisor.worker.recorder import Recorder

if TYPE_CHECKING:
    from supervisor.config import PoolSettings

SAFETY_NET = 5.0  # seconds after which an idle worker looks for itself
MOST_BACKOFF = 5.0  # seconds between tries while the database cannot be used
_EARLY_NOTICE = 0.9  # of max_jobs_per_worker: time to get a successor ready
EXIT_LEFT, EXIT_BROKEN = 0, 70


class Worker:
    """One worker process, from its set-up to its end. Made after the fork, in the main thread.

    `wake` is the pool's eventfd, on which it sleeps; `news` the supervisor's, through which it says that
    its slot has changed. `recorder` keeps what runs use and say, `row` counts them.
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
    ) -> None:
        self._pool = pool
        self._record = record
        self._engine = engine
        self._slot = slot
        self._wake = wake
        self._news = news
        self._recorder = recorder
        self._counter = Counter(row, pool.types)
        self._handler = handler
        self._device = device
        self._log = events(pool=pool.name, worker=record.name)
        self._wanted = Wanted(pool.types, " ".join(pool.capabilities))
        self._pace = Pace(pool.prefetch)
        self._growth = Growth(pool.max_memory)
        self._hand = Hand()
        self._done = 0
        self._draining = False
        self._running: Claim | None = None
        self._interrupted: tuple[int, int] | None = None
        self._backoff = 0.0
        self._spare: Claims | None = None  # the pulse's own store

    def run(self) -> int:
        """The whole life. Returns the process's exit code."""
        self._slot.occupy(os.getpid())
        self._listen()
        pulse = self._pulse = Pulse(self._slot, min(self._pool.heartbeat_timeout / 4, 5.0), self._hand_back)
        pulse.start()
        try:
            self._set_up()
        except (HandlerError, StoreError) as error:
            return self._broken(str(error))
        except BaseException as error:
            traceback.print_exc()
            return self._broken(f"set-up failed: {type(error).__name__}: {error}")
        self._work()
        self._tear_down()
        pulse.stop()
        self._slot.state(State.LEFT)
        return EXIT_LEFT

    def _work(self) -> None:
        while not self._draining and self._done < self._pool.max_jobs_per_worker:
            claims = self._exchange(self._want())
            if not claims:
                self._slot.state(State.IDLE)
                # A job may have come between the look and the word "idle": look once more.
                claims = self._exchange(self._want())
            if claims:
                self._execute(claims)
            elif not self._draining:
                self._sleep()
        self._slot.state(State.DRAINING)
        while self._hand:
            self._exchange(0)

    def _want(self) -> int:
        return min(self._pace.want, self._pool.max_jobs_per_worker - self._done)

    def _exchange(self, want: int) -> list[Claim]:
        """Settle what is finished and claim what comes next. While the database fails, wait and keep all."""
        settlements, now = self._hand.collect(), time.time()
        try:
            exchange = self._store.exchange(
                self._record.incarnation, settlements, self._wanted, want, self._pool.lock_time, now
            )
        except StoreError as error:
            self._hand.put_back(settlements)
            self._wait_out(error)
            return []
        if self._backoff:
            self._recovered()
        if settlements:
            self._counter.settled(settlements, exchange.lost, now, bool(exchange.claims))
        self._report_lost(exchange.lost)
        self._slot.hold(len(exchange.claims))
        return exchange.claims

    def _execute(self, claims: list[Claim]) -> None:
        slot, hand, pulse = self._slot, self._hand, self._pulse
        slot.state(State.BUSY)
        began = time.monotonic()
        if len(claims) > 1:
            pulse.batch(began)
        self._recorder.hand(began)
        hand.take(claims)
        count = 0
        if self._inbox.pending:  # told to leave between claim and start
            self._heed()
        while ran := self._run_next():
            count += ran
            if self._inbox.pending:
                self._heed()
        pulse.job(0.0)
        now = time.monotonic()
        self._pace.observe(count, now - began)
        if self._done >= self._pool.max_jobs_per_worker * _EARLY_NOTICE:
            self._wear_out(Worn.OLD)
        elif self._growth.beyond_limit(began, now):
            self._wear_out(Worn.LARGE)

    def _wear_out(self, why: Worn) -> None:
        """Ask for a successor; we go on until it is ready."""
        if self._slot.wear_out(why):
            self._tell()

    def _run_next(self) -> int:
        """Run what comes next in hand. Returns how many jobs that were."""
        claim = self._hand.next()
        if claim is None:
            return 0
        self._hand.finish(self._run_one(claim))
        return 1

    def _begin(self, claim: Claim, batch: int = 1) -> None:
        """Show that a run begins: of a job, or of a batch of so many whose first it is."""
        started = time.monotonic()
        self._slot.forget_progress()
        self._slot.begin(claim.job_id, claim.token, started, started + self._pool.timeout, batch)
        self._pulse.job(started)
        self._running = claim

    def _run_one(self, claim: Claim) -> Any:
        self._begin(claim)
        try:
            settlement = self._executor.run(claim)
            self._running = None
        except JobInterrupted as error:
            # Raised in the instant after the handler had returned.
            settlement = self._executor.interrupted(claim, error, time.time())
            self._running = None
        self._done += 1
        self._slot.finish(self._done)
        return settlement

    def _hand_back(self) -> None:
        """In the pulse's thread, while a slow job runs: settle what is finished, release what has not begun."""
        self._counter.flush()
        self._hand.release()
        settlements, now = self._hand.collect(), time.time()
        if not settlements:
            return
        try:
            if self._spare is None:
                self._spare = self._engine.claims()
            exchange = self._spare.exchange(
                self._record.incarnation, settlements, self._wanted, 0, self._pool.lock_time, now
            )
        except StoreError as error:
            self._hand.put_back(settlements)
            self._counter.store_failed(error)
            self._log.warning("hand_back_failed", error=str(error))
            return
        # The last of them was over when the slow one began.
        self._counter.settled(settlements, exchange.lost, now - self._pulse.busy_for)
        self._report_lost(exchange.lost)
        self._slot.hold(1)

    # Sleeping and signals

    def _listen(self) -> None:
        self._inbox = signals.Inbox(
            obeyed=(signals.DRAIN,), ignored=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        )
        signal.signal(signals.INTERRUPT, self._interrupt)
        faulthandler.register(signals.DUMP_STACKS, all_threads=True)
        # EXCLUSIVE: one post wakes one worker, not all of the pool.
        self._poll = select.epoll()
        self._poll.register(self._wake, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self._poll.register(self._inbox.fileno(), select.EPOLLIN)
        signals.unblock_all()

    def _sleep(self, most: float = SAFETY_NET) -> None:
        """Until a job may have come, a signal has, or `most` seconds are over."""
        for descriptor, _ in self._poll.poll(most):
            if descriptor == self._wake:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
        self._obey()

    def _wait_out(self, error: StoreError) -> None:
        self._counter.store_failed(error)
        if not self._backoff:
            self._log.error("store_failed", error=str(error))
        self._slot.forget_progress()
        self._slot.tell(str(error))
        self._backoff = min(max(self._backoff * 2, 0.05), MOST_BACKOFF)
        select.select([self._inbox.fileno()], [], [], self._backoff)
        self._obey()

    def _recovered(self) -> None:
        if self._backoff:
            self._backoff = 0.0
            self._slot.tell("")
            self._log.info("store_recovered")

    def _obey(self) -> None:
        if signals.DRAIN in self._inbox.take():
            self._draining = True

    def _heed(self) -> None:
        """Told to leave, give back what has not begun."""
        self._obey()
        if self._draining:
            self._hand.release()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """The one handler that does more than record: only an exception can end somebody else's loop."""
        claim = self._running
        if claim is None or self._interrupted == (claim.job_id, claim.token):
            return
        if self._slot.cancel_for(claim.job_id, claim.token) is not Cancel.NONE:
            self._interrupted = (claim.job_id, claim.token)
            raise JobInterrupted

    # The ends

    def _set_up(self) -> None:
        self._store = self._registered()
        handler = self._handler or load(self._pool.handler)
        if self._pool.batch_size > 1 and isinstance(handler, Handler):
            handler.insist_on_batches()
        self._executor = Executor(
            handler,
            _SlotBoard(self._slot, self._recorder, self._engine),
            self._pool.retry,
            capabilities=self._pool.capabilities,
            options=self._pool.options,
            device=self._device,
            timeout=self._pool.timeout,
            timed_out=lambda claim: self._slot.cancel_for(claim.job_id, claim.token) is Cancel.TIMEOUT,
            exhausted=self._make_room,
            max_crashes=self._pool.max_crashes,
            recorder=self._recorder,
        )
        self._handler = handler
        failpoints.reach("set_up.before")
        handler.setup(self._executor.context())
        failpoints.reach("set_up")
        check_memory(self._pool.max_memory)
        self._wait_to_be_watched()
        self._slot.state(State.IDLE)
        self._tell()

    def _wait_to_be_watched(self) -> None:
        """Nobody works whose end nobody would see. The supervisor has usually long seen us by now."""
        pause = 0.0005
        while not self._slot.watched and not self._draining:
            select.select([self._inbox.fileno()], [], [], pause)
            self._obey()
            pause = min(pause * 2, 0.1)

    def _registered(self) -> Claims:
        """A store that knows us. A database that cannot be used is waited for: another start would not mend it."""
        while True:
            try:
                return self._register()
            except StoreError as error:
                if self._draining:
                    raise
                self._wait_out(error)

    def _register(self) -> Claims:
        store = self._engine.claims()
        try:
            store.register(self._record)
        except StoreError:
            store.close()
            raise
        self._recovered()
        return store

    def _make_room(self) -> None:
        """A handler has met the limit of this process's memory: a fresh one takes its place."""
        self._log.warning("memory_exhausted", hint="the worker is replaced")
        self._draining = True
        self._hand.release()

    def _broken(self, why: str) -> int:
        self._slot.give_up(why)
        return EXIT_BROKEN

    def _tear_down(self) -> None:
        assert self._handler is not None
        try:
            self._handler.teardown(self._executor.context())
        except BaseException as error:
            self._log.warning("teardown_failed", error=repr(error), exc_info=True)
        self._store.close()

    def _tell(self) -> None:
        os.eventfd_write(self._news, 1)

    def _report_lost(self, jobs: list[int]) -> None:
        for job in jobs:
            self._log.warning("claim_lost", job=job, result="discarded")


class _SlotBoard:
    """A handler's progress and questions, answered by the worker's slot; its log, kept for the job."""

    def __init__(self, slot: Slot, recorder: Recorder, engine: Engine) -> None:
        self._slot = slot
        self._engine = engine
        self._epoch = ""  # asked for by few handlers, and the same for the worker's whole life
        self._tape = recorder.tape

    def keep(self, line: str) -> None:
        self._tape.line(line)

    def progress(self, fraction: float, text: str) -> None:
        self._slot.progress(fraction, text)

    def extend(self, seconds: float) -> None:
        self._slot.extend(time.monotonic() + seconds)

    def cancelled(self, job: int, token: int) -> bool:
        return self._slot.cancel_for(job, token) is not Cancel.NONE

    def epoch(self) -> str:
        self._epoch = self._epoch or self._engine.epoch()
        return self._epoch
