"""One run at a time: how it is shown in the slot of its worker, interrupted and ended, for one job or for several
together.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Collection, Sequence
from math import inf
from time import monotonic

from supervisor.domain.batching import Prefetch
from supervisor.domain.job import Claim, RunKey
from supervisor.domain.settlement import Settlement
from supervisor.system.kernel import unread
from supervisor.system.slot import Cancel, Phase, RecycleReason, State
from supervisor.worker import returned_fork
from supervisor.worker.context import JobInterrupted
from supervisor.worker.handler import Handler
from supervisor.worker.heartbeat import EVERY
from supervisor.worker.held import MANY_CHILDREN
from supervisor.worker.loop import Parts
from supervisor.worker.recorder import SlotBoard

PATIENCE = 0.05  # seconds that claims may wait behind a run
REST = 2.0  # seconds without such claims, and without progress, after which the heartbeat thread sleeps between beats
Call = Callable[[list[Claim]], list[Settlement]]
Failed = Callable[[list[Claim], BaseException, float], list[Settlement]]

_STDERR = 2
_SHORTEST = 0.001  # seconds of a time limit
_LONG = 0.001  # seconds from which a run may have printed by other means than Python's, and a look costs nothing


class Sequential:
    """What runners have in common that have one run at a time: the loop is in the main thread, and `take` returns when
    its runs, together a round, have ended. `done` counts jobs. A subclass has `take` and `room`.

    `call` calls the handler for a run: whatever it does becomes settlements. `failed` makes those of a run that started
    at a Unix time and during which an error was raised, also of a JobInterrupted outside of `call`.

    When a run takes longer than PATIENCE, the heartbeat thread commits what has ended before and returns what has not
    begun. Handlers report progress to the slot as often as they like; the thread copies it to the table, none of a job
    that ends within EVERY seconds. It looks twice in PATIENCE seconds, but not while nothing has asked for that for
    REST seconds: an idle worker costs almost nothing.
    """

    def __init__(self, parts: Parts, call: Call, failed: Failed) -> None:
        self._parts = parts
        self._call, self._failed = call, failed
        self._timeouts = {type_: settings.timeout for type_, settings in parts.pool.by_type.items()}
        self._running: Claim | None = None
        self._began = 0.0  # when the latest run did, monotonic seconds
        self._interrupted: RunKey | None = None  # the current run, if it was
        self._enqueued = 0  # jobs, by the runs of the current round
        self._unread = False  # there may be output that the supervisor has not read
        self._rested = False  # the worker had no jobs before the next ones
        self.done = 0
        self._asked = False  # for a look of the heartbeat thread, since the last one
        self._asked_at = 0.0
        self._unwatched = True  # that thread is not looking
        self._written: tuple[object, ...] = ()  # the progress that is in the table
        self._write_at = 0.0
        executor, slot = parts.executor, parts.slot
        assert isinstance(executor.board, SlotBoard)
        executor.timed_out = lambda claim: slot.page.cancel_requested(claim.job_id, claim.token) is Cancel.TIMEOUT
        executor.board.reported = self._attend

    # Of `Runner`

    def running(self) -> Collection[RunKey]:
        return ()

    def collect(self) -> int:
        return 0

    def rest(self) -> float:
        self._parts.executor.recorder.read_meters(monotonic())
        self._rested = True
        return inf

    def check(self) -> None:
        self._parts.fitness.look(self.done)

    def host(self, loop: Callable[[], None]) -> None:
        loop()

    def detach(self) -> None:
        """The fork ends where its handler ends; it runs no other job."""

    def interrupt(self) -> None:
        """On a signal: raise JobInterrupted if the current run must stop. Only that can end a loop in its handler."""
        claim = self._running
        if claim is None or self._interrupted == (claim.job_id, claim.token):
            return
        if self._parts.slot.page.cancel_requested(claim.job_id, claim.token) is not Cancel.NONE:
            self._interrupted = (claim.job_id, claim.token)
            raise JobInterrupted

    def watch(self, now: float) -> float | None:
        if self._asked:
            self._asked, self._asked_at = False, now
        # The run first: the moment at which it began was noted before it, so it is not that of an earlier run.
        if self._running is not None and (busy_for := now - self._began) >= PATIENCE:
            self._parts.exchange.aside(busy_for)
        if now >= self._write_at:
            self._copy_progress(now)
        self._unwatched = now - self._asked_at > REST
        if self._asked:  # meanwhile: whoever asks from now on wakes us
            self._unwatched = False
        return None if self._unwatched else PATIENCE / 2

    def _attend(self) -> None:
        """Have the heartbeat thread look soon: several claims were taken, or a run has reported progress. By any
        thread; cheap: called thousands of times a second.
        """
        self._asked = True
        if self._unwatched:
            self._unwatched = False
            self._parts.heartbeat.wake()

    def _copy_progress(self, now: float) -> None:
        slot = self._parts.slot
        run = slot.read()
        reported = (run.job, run.token, run.progress, run.text)
        if not run.job or run.progress is None or reported == self._written:
            return
        self._asked = True  # until it is written
        if now - run.started < EVERY or slot.page.run != (run.job, run.token):
            return  # young, or another run has begun: the rest may be another's, too
        if self._parts.exchange.show_progress((run.job, run.token), run.batch, run.progress, run.text):
            self._written = reported
        self._write_at = monotonic() + EVERY

    # A round, and each run in it

    def _begin_round(self) -> float:
        """Returns the time, in monotonic seconds."""
        parts, rested, self._rested = self._parts, self._rested, False
        parts.slot.state(State.BUSY)
        self._enqueued = 0
        if parts.exchange.held.waiting > 1:
            self._attend()
        now = monotonic()
        if not rested:
            parts.executor.recorder.read_meters(now)
        return now

    def _end_round(self) -> float:
        """Returns the time."""
        now = monotonic()
        if self._parts.fitness.due(self.done, now):
            self._parts.fitness.look(self.done)
        return now

    def _run(self, claims: list[Claim]) -> list[Settlement]:
        """Run these together, and give their outcomes to the exchange."""
        try:
            self._begin(claims)
            settlements = self._call(claims)
            self._running = None
        except JobInterrupted as error:
            # Raised just before the handler was called, or just after it returned.
            settlements = self._failed(claims, error, self._parts.executor.clock())
            self._running = None
        self._end(claims, settlements)
        if self._interrupted is not None:
            self._end_interruption()
        return settlements

    def _begin(self, claims: list[Claim]) -> None:
        """Show that a run starts; of a batch, its first job is named."""
        parts, claim, started = self._parts, claims[0], monotonic()
        parts.slot.progress(-1.0, "")
        deadline = started + self._timeouts.get(claim.type, parts.pool.timeout)
        earlier = _earlier_output() if self._unread or started - self._began >= _LONG else 0
        self._unread, self._began = earlier > 0, started
        parts.slot.begin(claim.job_id, claim.token, started, deadline, len(claims), unread=earlier)
        self._running = claim

    def _end(self, claims: list[Claim], settlements: list[Settlement]) -> None:
        parts, exchange = self._parts, self._parts.exchange
        self.done += len(claims)
        parts.slot.finish(self.done)
        for settlement in settlements:
            exchange.held.ended(settlement)
            self._enqueued += len(settlement.children)
        if self._enqueued >= MANY_CHILDREN:  # together they would be a transaction that blocks other writers
            self._enqueued = 0
            exchange.turn(0)
        if settlements[0].failure is not None or settlements[0].usage is not None or parts.cautious:
            self._unread = True
            parts.fitness.look(self.done)
        if parts.executor.handler.loop_changed:
            parts.executor.handler.loop_changed = False
            parts.fitness.report("the event loop")

    def _end_interruption(self) -> None:
        """What the run has begun may go on, on a device or in a thread. No other job begins before the handler says
        that it does not. If it does not answer in time, the process ends: a thread of C sees to that, whatever holds
        the interpreter's lock.
        """
        parts, executor, exchange = self._parts, self._parts.executor, self._parts.exchange
        self._interrupted = None
        exchange.held.release()
        exchange.turn(0)  # the run itself ends in time, and the others are run elsewhere
        ctx, handler, quiet = executor.context(), executor.handler, False
        parts.slot.page.phase_number = Phase.AFTER_INTERRUPT
        faulthandler.dump_traceback_later(max(parts.pool.kill_grace, _SHORTEST), exit=True)
        try:
            quiet = isinstance(handler, Handler) and handler.after_interrupt(ctx)  # no program
        except BaseException as error:
            returned_fork.leave(error)
            executor.log.warning("after_interrupt_failed", error=repr(error), exc_info=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
            parts.slot.page.phase_number = Phase.SET_UP
            ctx.close()
        returned_fork.leave()
        if not quiet:
            parts.fitness.replace(RecycleReason.INTERRUPTED)


def _earlier_output() -> int:
    try:
        return unread(_STDERR)
    except OSError:
        return 0  # a handler has put something else in its place: nothing of it reaches the supervisor


class OneAtATime(Sequential):
    """Implements `Runner`. It claims several quick jobs together, and runs one after the other."""

    def __init__(self, parts: Parts) -> None:
        run, failed = parts.executor.run, parts.executor.failed
        super().__init__(
            parts, lambda claims: [run(claims[0])], lambda claims, error, at: [failed(claims[0], error, at)]
        )
        self._pace = Prefetch(parts.pool.prefetch)

    def room(self) -> int:
        """The first job after a rest begins sooner if it is claimed alone."""
        return 1 if self._rested or self._parts.cautious else self._pace.want

    def take(self, claims: Sequence[Claim]) -> bool:
        held, slot = self._parts.exchange.held, self._parts.slot
        if not held.waiting:
            return False
        before, began = self.done, self._begin_round()
        while (claim := held.next()) is not None:
            self._run([claim])
            if slot.page.drain:
                held.release()
        self._pace.observe(self.done - before, self._end_round() - began)
        return True
