"""Runs the claims that a worker holds, one at a time or in batches, and shows each run in its slot.

When a batch goes wrong, it is not known which job is the cause. A batch that fails, exceeds its time limit or
kills its worker is returned to the queue, and the attempts do not count. From then on its jobs run in batches of
at most half its size (`Claims.limits`), until the job that fails or kills runs alone and can be charged.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

# Imported by name, as in the executor: a handler that replaces them must not affect the loop.
from time import monotonic
from typing import TYPE_CHECKING

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.system.kernel import unread
from supervisor.system.slot import Cancel, Phase, RecycleReason, Slot
from supervisor.worker import forked
from supervisor.worker.context import JobInterrupted
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness
from supervisor.worker.heartbeat import HeartbeatThread
from supervisor.worker.loader import Handler

if TYPE_CHECKING:
    from supervisor.config import PoolSettings
    from supervisor.domain.batching import Candidate
    from supervisor.worker.batch_plan import BatchPlan

_len = len  # handlers may also replace builtins, until the process is checked
_STDERR = 2
_SHORTEST = 0.001  # seconds of a time limit
_LONG = 0.001  # seconds from which a run may have printed by other means than Python's, and a look costs nothing
_MANY_CHILDREN = 1000  # jobs that the runs of one round may enqueue together before they are committed


@dataclass(eq=False)
class Runner:
    """A run is of one job, or of up to `batch_size` jobs whose handler takes them together. `done` counts jobs.

    `commit` settles what has ended so far. A `cautious` one checks the process after every run. If the pool has a plan
    for its batches, that decides which jobs run together; the others return to the queue.
    """

    pool: PoolSettings
    slot: Slot
    exchange: Exchange
    heartbeat: HeartbeatThread
    executor: Executor
    fitness: Fitness
    _: KW_ONLY
    commit: Callable[[], None]
    cautious: bool

    def __post_init__(self) -> None:
        self._most = self.pool.batch_size
        self._timeout = self.pool.timeout
        self._timeouts = {type_: settings.timeout for type_, settings in self.pool.by_type.items()}
        self._handler = self.executor.handler
        self._plan = self._planned() if self._most > 1 and not self.cautious else None
        self._limits: Mapping[int, int] = {}
        self._running: Claim | None = None
        self._interrupted: tuple[int, int] | None = None  # the current run, if it was
        self._enqueued = 0  # jobs, by the runs of the current round
        self._began = 0.0  # when the latest run did
        self._unread = False  # there may be output that the supervisor has not read
        self.done = 0

    def _planned(self) -> BatchPlan | None:
        from supervisor.worker.batch_plan import plan_of  # imported here: few pools have batches

        plan = plan_of(self.pool, self._handler, self.executor.log, self.executor.mark)
        if plan is not None:
            self.executor.too_large = plan.too_large
        return plan

    @property
    def want(self) -> int:
        """How many jobs to claim for the next batch."""
        return self._most if self._plan is None else self._plan.want

    @property
    def full(self) -> int:
        """With how many jobs a batch need not wait for more."""
        return self._most if self._plan is None else self._plan.size

    def run_all(self, limits: Mapping[int, int], rested: bool = False) -> int:
        """Run what the exchange holds, unless the worker is told to exit, or the heartbeat thread returns some. Returns
        how many jobs.

        `limits` says with how many jobs each may run that has been in a batch that went wrong; `rested`, that the
        worker had no jobs before these.
        """
        if self._plan is not None:
            self._plan.begin(limits, rested)
        requests, exchange, before = self.slot.requests, self.exchange, self.done
        self._enqueued, self._limits = 0, limits
        if requests.drain_requested:  # between claim and start
            exchange.release()
        while batch := self._next():
            self._run(batch)
            if requests.drain_requested:
                exchange.release()
        self.heartbeat.job(0.0)
        return self.done - before

    def _next(self) -> list[Claim]:
        """The claims of the next run.

        What has succeeded before in batches is committed first, since the next one may kill the worker.
        """
        exchange, most = self.exchange, self._most
        if most == 1:
            claim = exchange.next()
            return [] if claim is None else [claim]
        if self._plan is not None:
            return self._next_planned(self._plan)
        while exchange.unsettled and exchange.waiting and not self.slot.requests.drain_requested:
            self.commit()
        batch: list[Claim] = []
        while _len(batch) < most and (claim := exchange.next()) is not None:
            limit = self._limits.get(claim.job_id, most)
            if _len(batch) >= limit:
                exchange.return_first(claim)
                break
            batch.append(claim)
            most = min(most, limit)
        return batch

    def _next_planned(self, plan: BatchPlan) -> list[Claim]:
        exchange, requests = self.exchange, self.slot.requests
        looked: list[tuple[Claim, Candidate]] = []
        while not requests.drain_requested and (claim := exchange.next()) is not None:
            if (candidate := self._look(plan, claim)) is not None:
                looked.append((claim, candidate))
        batch, rest = plan.divide(looked)
        exchange.give_back(rest)
        # Before the batch begins: its death concerns none of the others.
        while exchange and not requests.drain_requested:
            self.commit()
        if requests.drain_requested:
            exchange.give_back(batch)
            exchange.release()
            return []
        self.slot.work.hold(_len(batch))
        return batch

    def _look(self, plan: BatchPlan, claim: Claim) -> Candidate | None:
        """What the plan must know of a job. If the handler is asked for that, it is a run of this job: it has the time
        limit of one, and is charged if it ends the worker. None if the job has ended by that.
        """
        if not plan.asks_handler:
            return plan.look(claim)
        try:
            self._begin([claim])
            candidate = plan.look(claim)
            self._running = None
        except JobInterrupted as error:
            settlements = self.executor.failed_together([claim], error, self.executor.clock())
            self._running = None
            self._end([claim], settlements)
            self._end_interruption()
            return None
        self.slot.work.finish(self.done)
        return candidate

    def _run(self, claims: list[Claim]) -> None:
        try:
            self._begin(claims)
            settlements = [self.executor.run(claims[0])] if self._most == 1 else self.executor.run_batch(claims)
            self._running = None
        except JobInterrupted as error:
            # Raised just before the handler was called, or just after it returned.
            settlements = self.executor.failed_together(claims, error, self.executor.clock())
            self._running = None
        if self._plan is not None:
            self._plan.ran(settlements, self._began, monotonic())
        self._end(claims, settlements)
        if self._interrupted is not None:
            self._end_interruption()

    def _end_interruption(self) -> None:
        """What the run has begun may go on, on a device or in a thread. No other job begins before that is over."""
        self._interrupted = None
        self.exchange.release()
        self.commit()  # the run itself ends in time, and the others are run elsewhere
        if not self._is_quiet():
            self.fitness.replace(RecycleReason.INTERRUPTED)

    def _is_quiet(self) -> bool:
        """Asks the handler. If it does not answer in time, the process ends: a thread of C sees to that, whatever holds
        the interpreter's lock.
        """
        ctx, mark = self.executor.context(), self.executor.mark
        self.slot.enter(Phase.AFTER_INTERRUPT)
        faulthandler.dump_traceback_later(max(self.pool.kill_grace, _SHORTEST), exit=True)
        try:
            quiet = isinstance(self._handler, Handler) and self._handler.after_interrupt(ctx)  # no program
        except BaseException as error:
            if not mark[0]:
                forked.end(error)
            quiet = False
            self.executor.log.warning("after_interrupt_failed", error=repr(error), exc_info=True)
        finally:
            faulthandler.cancel_dump_traceback_later()
            self.slot.enter(Phase.SET_UP)
            ctx.close()
        if not mark[0]:
            forked.end()
        return quiet and not self.fitness.leftovers.goes_on()

    def _end(self, claims: list[Claim], settlements: list[Settlement]) -> None:
        self.done += _len(claims)
        self.slot.work.finish(self.done)
        for settlement in settlements:
            self.exchange.ended(settlement)
            if settlement.children:
                self._count(_len(settlement.children))
        settlement = settlements[0]
        if settlement.failure is not None or settlement.usage is not None or self.cautious:
            self._unread = True
            self.fitness.after(settlement, self.done, always=self.cautious)
        if self._handler.changes is not None:
            self.fitness.see_handler()

    def _begin(self, claims: list[Claim]) -> None:
        """Show that a run starts; of a batch, its first job is named."""
        claim, started, work = claims[0], monotonic(), self.slot.work
        work.forget_progress()
        doubtful = self.fitness.leftovers.new(started)
        deadline = started + self._timeouts.get(claim.type, self._timeout)
        earlier = _earlier_output() if self._unread or started - self._began >= _LONG else 0
        self._unread, self._began = earlier > 0, started
        work.begin(claim.job_id, claim.token, started, deadline, _len(claims), doubtful=doubtful, unread=earlier)
        self.heartbeat.job(started)
        self._running = claim

    def _count(self, children: int) -> None:
        """Keep what the runs of a round enqueue from adding up to a transaction that blocks other writers."""
        self._enqueued += children
        if self._enqueued >= _MANY_CHILDREN:
            self.commit()

    def interrupt(self) -> None:
        """On a signal: raise JobInterrupted if the current run must stop. Only that can end a loop in its handler."""
        claim = self._running
        if claim is None or self._interrupted == (claim.job_id, claim.token):
            return
        if self.slot.requests.cancel_requested(claim.job_id, claim.token) is not Cancel.NONE:
            self._interrupted = (claim.job_id, claim.token)
            raise JobInterrupted


def _earlier_output() -> int:
    try:
        return unread(_STDERR)
    except OSError:
        return 0  # a handler has put something else in its place: nothing of it reaches the supervisor
