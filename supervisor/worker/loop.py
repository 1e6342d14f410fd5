"""What a worker does from its set-up to its end, whichever runner it has: settle and claim, run, rest.

    main thread         Worker.run ── runner.host(Loop.run)
    thread of the loop  Loop.run:
                            Runner.collect   what has ended goes to the exchange
                            Exchange.turn    one transaction: settle it, claim as many as there is room for
                            Runner.take      run the claims, or begin them
                            Runner.check     the process, before it is idle
                            Runner.rest      then sleep until there is something to do
    heartbeat thread    runner.watch         while runs are on: limits, progress, and what waits behind a slow run
    on a signal         runner.interrupt     in the main thread

A runner that has one run at a time hosts the loop in the main thread, and `take` returns when its runs have ended. With
`concurrency` the main thread runs the event loop of the handlers, the loop has a thread of its own, and `take` only
begins runs. The loop knows nothing of the difference, nor which claims of those that it has taken run together: they
wait in the `Exchange` until a runner takes them from it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim, RunKey
from supervisor.system.slot import RecycleReason, Slot, State
from supervisor.worker.exchange import Exchange
from supervisor.worker.executor import Executor
from supervisor.worker.fitness import Fitness, MemoryWatch, Ruined
from supervisor.worker.heartbeat import Heartbeat
from supervisor.worker.wakeups import Wakeups

if TYPE_CHECKING:
    from supervisor.config import PoolSettings

SAFETY_NET = 5.0  # seconds after which a worker that has room checks for jobs without a wake-up
_WATCHED = 3.0, 60.0  # seconds: if the maintainer was well so lately, an idle worker does so only so often
_EARLY_NOTICE = 0.9  # of max_jobs_per_worker: time to start a successor


class Parts(NamedTuple):
    """What the loop and the runner of a worker need from the rest of it."""

    pool: PoolSettings
    slot: Slot
    exchange: Exchange
    executor: Executor
    fitness: Fitness
    heartbeat: Heartbeat
    wakeups: Wakeups
    cautious: bool


class Runner(Protocol):
    """Runs claims: one at a time, in batches, or several at the same time. Called in the thread of the loop,
    unless it says otherwise.
    """

    @property
    def done(self) -> int:
        """How many runs have ended, as far as the loop has been told."""

    def running(self) -> Collection[RunKey]:
        """The runs that have begun, and whose end was not collected. None between two calls of a runner that has one
        run at a time.
        """

    def collect(self) -> int:
        """Give what has ended since the last call to the exchange. Returns how many runs."""

    def room(self) -> int:
        """How many more jobs could be run, or begun, if they were claimed now."""

    def take(self, claims: Sequence[Claim]) -> bool:
        """Run those of the claims that wait in the exchange whose turn it is; `claims` are the new ones among them.
        Returns whether any was.
        """

    def rest(self) -> float:
        """There is nothing to do. Returns for how many seconds at most; 0 or less if that has changed meanwhile."""

    def check(self) -> None:
        """Check the process while no run is on. Raises Ruined."""

    # By the other threads of the worker

    def watch(self, now: float, /) -> float | None:
        """Called by the heartbeat thread with the time, monotonic seconds. Returns the seconds until the next call,
        None if there is nothing to do.
        """

    def interrupt(self) -> None:
        """A signal has come, in the main thread: raises JobInterrupted if the run there is to stop."""

    def host(self, loop: Callable[[], None]) -> None:
        """Call `loop` in a suitable thread, and return when it is over. Called in the main thread."""

    def detach(self) -> None:
        """This is a process that a handler has forked: the runs are not its own."""


class Loop:
    """Claims for a `runner` until the worker is to leave. Raises Ruined if the process is."""

    def __init__(self, parts: Parts, runner: Runner) -> None:
        self._slot = parts.slot
        self._exchange = parts.exchange
        self._wakeups = parts.wakeups
        self._fitness = parts.fitness
        self._runner = runner
        self._most = parts.pool.max_jobs_per_worker or sys.maxsize
        self._growth = MemoryWatch(parts.pool.max_memory)
        self._posted = False  # somebody has just seen a due job
        parts.exchange.running = runner.running
        parts.exchange.failed = self._failed

    def run(self) -> None:
        runner, exchange = self._runner, self._exchange
        while not (self._leaving and not runner.running()):
            if not (self._turn() or (self._may_sleep() and self._turn())):
                self._rest()
        self._slot.page.open = False
        self._slot.state(State.DRAINING)
        exchange.held.release()
        while exchange.held:
            exchange.turn(0)
        self._fitness.cease()

    @property
    def _leaving(self) -> bool:
        return bool(self._slot.page.drain) or self._runner.done >= self._most

    def _want(self) -> int:
        """How many jobs to claim. If it is to leave, what has not begun returns to the queue."""
        runner, exchange = self._runner, self._exchange
        if self._leaving:
            exchange.held.release()
            return 0
        return max(0, min(runner.room(), self._most - runner.done - len(runner.running()) - exchange.held.waiting))

    def _turn(self) -> bool:
        """Returns whether anything has ended or begun."""
        runner = self._runner
        ended = runner.collect()
        want = 0 if self._is_watched() else self._want()
        claims = self._exchange.turn(want, posted=self._posted)
        self._posted = False
        if claims and self._leaving:  # it was told so between claim and start
            self._exchange.held.release()
            claims = []
        began = monotonic()
        if not (runner.take(claims) or ended):
            return False
        if runner.done >= self._most * _EARLY_NOTICE:
            self._fitness.request_recycle(RecycleReason.OLD)
        elif self._growth.beyond_limit(began, monotonic()):
            self._fitness.request_recycle(self._growth.reason)
        return True

    def _is_watched(self) -> bool:
        """Whether there is nothing to look for: since this worker looked last, it would have been woken."""
        exchange, now, (lately, seldom) = self._exchange, monotonic(), _WATCHED
        if self._slot.page.state_number != State.IDLE:
            exchange.looked = -inf
        return not self._posted and now - exchange.looked < seldom and now - exchange.gate.watched < lately

    def _may_sleep(self) -> bool:
        """Let new jobs wake the worker, if there is room for them. One may have come just before: look once more."""
        runner = self._runner
        if not runner.running():
            if not self._fitness.seen(runner.done):
                runner.check()
            if self._want():
                self._slot.state(State.IDLE)
                return True
        elif self._want():
            self._slot.page.open = True
            return True
        return False

    def _rest(self) -> None:
        exchange, want = self._exchange, self._want()
        if exchange.held.unsettled or (want and exchange.in_doubt):
            return  # while the database fails, each attempt has waited already
        if self._leaving and not self._runner.running():
            return
        seconds = min(SAFETY_NET, self._runner.rest())
        if seconds > 0 and want:
            self._posted = self._wakeups.sleep(seconds)
        elif seconds > 0:
            self._wakeups.pause(seconds)
        self._slot.page.open = False

    def _failed(self, error: StoreError) -> None:
        """The cause of an error of the database may be in our own process; while jobs run, it cannot be judged."""
        if not self._runner.running():
            self._runner.check()
            if self._fitness.is_restricted():
                raise Ruined(f"a handler has changed the user or a limit of the process, and {error}") from None
