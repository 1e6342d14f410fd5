"""Claims jobs whenever a worker with concurrency has free places, and settles each as it ends."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass

# Imported by name, as in the executor: a handler that replaces them must not affect the loop.
from time import monotonic
from typing import TYPE_CHECKING, Any

from supervisor.domain.job import Claim
from supervisor.system.forkmark import Mark
from supervisor.system.slot import Cancel, RecycleReason, Slot, State
from supervisor.worker import forked
from supervisor.worker.concurrent.runner import ConcurrentRunner
from supervisor.worker.exchange import Exchange
from supervisor.worker.fitness import Fitness, leave_ruined
from supervisor.worker.leftovers import an_executor_is_at_work
from supervisor.worker.memory_watch import MemoryWatch
from supervisor.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable

    from supervisor.config import PoolSettings

_PATIENCE = 0.05  # seconds that claims may wait for others to end
_MAIN_PATIENCE = 1.0  # seconds in which the main thread should answer while no job runs
_EARLY_NOTICE = 0.9  # of max_jobs_per_worker: time to start a successor
_SAFETY_NET = 5.0  # seconds after which a worker with free places checks for jobs without a wake-up


@dataclass(eq=False)
class ConcurrentLoop:
    """`run` is called in the main thread, and returns when the worker is to leave; the rest happens in a thread.

    A job that ran beside others when a worker died has a limit: it runs beside fewer others the next time. What has
    ended before is committed first.
    """

    pool: PoolSettings
    slot: Slot
    exchange: Exchange
    runner: ConcurrentRunner
    fitness: Fitness
    _: KW_ONLY
    wakeups: Wakeups
    watched: Callable[[], None]
    log: Any
    mark: Mark

    def __post_init__(self) -> None:
        self._most = self.pool.concurrency
        self._most_jobs = self.pool.max_jobs_per_worker or sys.maxsize
        self._growth = MemoryWatch(self.pool.max_memory)
        self._limits: dict[int, int] = {}
        self._void: set[tuple[int, int]] = set()  # (job, token) of runs whose job was deleted
        self._room = 0  # with that many running a claim did not fit: none is claimed until there are fewer
        self.done = 0
        self.exchange.running = lambda: list(self.runner.runs)
        self._awake = True

    def run(self) -> None:
        """Raises Ruined."""
        self.slot.work.run_together(self._most)
        self.runner.restore_loop()
        thread = threading.Thread(target=self._work, name="claims", daemon=True)
        thread.start()
        self.runner.serve()
        thread.join()

    def wake(self) -> None:
        """A run has ended, or something else has happened. May be called in any thread."""
        if not self._awake:
            self._awake = True
            with suppress(BlockingIOError):  # it is full: it will wake
                os.write(self.wakeups.descriptor, b"\0")

    # The thread

    def _work(self) -> None:
        try:
            while not self._over():
                self._turn_until_nothing_is_left_to_do()
                if not self._over():
                    self._rest()
            self.slot.work.open(False)
            self.slot.state(State.DRAINING)
            while self.exchange:
                self._turn_of_exchange(0)
        except BaseException as error:
            if not self.mark[0]:
                forked.end(error)
            leave_ruined(error, self.slot, self.log)
        self.fitness.cease()  # here: what a set-up has left on the event loop may keep the main thread
        self.runner.leave()

    def _over(self) -> bool:
        return self._leaving and not self.runner.runs and not self.exchange.waiting

    @property
    def _leaving(self) -> bool:
        return self.slot.requests.drain_requested or self.done >= self._most_jobs

    def _turn_until_nothing_is_left_to_do(self) -> None:
        self.slot.work.open(False)
        while self._turn():
            pass
        if self._want():
            # From now on a new job wakes us. One may have arrived before: check once more.
            self._mark_idle()
            while self._turn():
                pass

    def _mark_idle(self) -> None:
        if self.runner.runs:
            self.slot.work.open(True)
        else:
            self.slot.state(State.IDLE)

    def _turn(self) -> bool:
        """Settle what has ended, claim what there is room for, begin it. Whether there was anything."""
        self._awake = True
        ended = self._collect()
        if ended:
            self.runner.show()  # first: settling them may take long
        claims = self._turn_of_exchange(self._want())
        if claims:
            self.wakeups.had_reason()
            self._limits |= self.exchange.limits(claims)
        begun = self._begin()
        self.slot.work.hold(len(self.runner.runs) + len(self.exchange) + self.exchange.unsure)
        if ended:
            self._recycle()
        more = bool(self.runner.finished or (self._leaving and self.exchange))
        more = more or (self.exchange.unsettled > 0 and not self.exchange.unavailable)
        return bool(ended or begun or more)

    def _want(self) -> int:
        runs, left = self.runner.runs, self._most_jobs - self.done
        if self._leaving or self.exchange.waiting:
            return 0
        if self._room and len(runs) >= self._room:
            return 0
        self._room = 0
        return max(0, min(self._together() - len(runs), left - len(runs)))

    def _together(self) -> int:
        """How many may run at the same time beside those that run."""
        return min([run.together for run in list(self.runner.runs.values())], default=self._most)

    def _limit(self, claim: Claim) -> int:
        return min(self._limits.get(claim.job_id, self._most), self._most)

    def _begin(self) -> int:
        """Begin those claims that fit, in order. Returns how many."""
        if self._leaving:
            self.exchange.release()
        batch: list[Claim] = []
        together, running = self._together(), len(self.runner.runs)
        while (claim := self.exchange.next()) is not None:
            if self._is_void(claim):
                continue
            limit = self._limit(claim)
            together = min(together, limit)
            uncommitted = limit < self._most and self.exchange.unsettled > 0
            if running + len(batch) >= together or uncommitted:
                self.exchange.return_first(claim)
                break
            batch.append(claim)
        if batch:
            self.slot.state(State.BUSY)
            doubtful = not running and self.fitness.leftovers.new(monotonic())
            self.runner.start(batch, self._limit, doubtful=doubtful)
            self.watched()
        return len(batch)

    def _collect(self) -> int:
        """Take the runs that have ended. Returns how many."""
        ended = 0
        while self.runner.finished:
            run = self.runner.finished.popleft()
            key = (run.claim.job_id, run.claim.token)
            if key in self._void:
                self._void.discard(key)
                self.exchange.discarded(key)
            else:
                self.exchange.ended(run.settlement)
            stopped = run.stopped_for is not Cancel.NONE
            if stopped and (run.interrupted or an_executor_is_at_work()):  # what it has begun may go on
                self.fitness.replace(RecycleReason.INTERRUPTED)
            ended += 1
            self.done += 1
            del self.runner.runs[key]
            self._limits.pop(run.claim.job_id, None)
        return ended

    def _is_void(self, claim: Claim) -> bool:
        """Whether a run of ours has its id and token: its job was deleted, and another was given its id, whose tokens
        began anew. That one goes back, for a claim with another token, and nothing is settled for the run.
        """
        key = (claim.job_id, claim.token)
        if key not in self.runner.runs:
            return False
        self._void.add(key)
        self.exchange.give_back([claim])
        return True

    def _turn_of_exchange(self, want: int) -> list[Claim]:
        if not self.mark[0]:
            forked.end()
        return self.exchange.turn(want, running=len(self.runner.runs))

    def _rest(self) -> None:
        """Until a run has ended, a job has arrived that there is room for, or a signal."""
        self._awake = False
        if self.runner.finished or (self.exchange.unavailable and (self.exchange or self._want())):
            return  # while the database fails, each attempt has waited already
        if self.exchange.waiting:
            self._wait_for_room()
        elif self._want():
            self._check_when_idle()
            self.wakeups.sleep(_SAFETY_NET)
        else:
            self.wakeups.pause(_SAFETY_NET)

    def _wait_for_room(self) -> None:
        """For a job that may not run beside so many others. If that takes longer, another worker may have it."""
        self.wakeups.pause(_PATIENCE)
        first = self.exchange.next()
        if first is None or self.runner.finished:
            if first is not None:
                self.exchange.return_first(first)
            return
        self._room = min(self._limit(first), self._together())
        self.exchange.return_first(first)
        self.exchange.release()
        self._limits.clear()

    # The process

    def look_for_cause(self) -> None:
        """Of an error of the database; while jobs run, the process cannot be judged."""
        if not self.runner.runs:
            self._look(closely=False)

    def _recycle(self) -> None:
        """Ask for a successor if that is due."""
        if self.done >= self._most_jobs * _EARLY_NOTICE:
            self.fitness.request_recycle(RecycleReason.OLD)
        elif self._growth.beyond_limit(now := monotonic(), now):
            self.fitness.request_recycle(self._growth.reason)

    def _check_when_idle(self) -> None:
        """The process is checked while no job runs: what differs then belongs to none."""
        if self.runner.runs:
            return
        self.fitness.leftovers.rest(monotonic())
        if not self.fitness.seen_closely(self.done):
            self._look(closely=True)

    def _look(self, *, closely: bool) -> None:
        def look() -> None:
            self.runner.restore_loop()
            self.fitness.see_handler()
            self.fitness.look(self.done, closely=closely)

        self.runner.in_main(look, _MAIN_PATIENCE)
