"""Wakes idle workers as soon as there may be a job, no matter who inserted it."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping
from math import inf

from supervisor.domain.duty import Duty, Result
from supervisor.domain.polling import HintWindow
from supervisor.maintenance.orders import PoolOrders
from supervisor.maintenance.scheduler import Items, Scheduler
from supervisor.store.base import Backlog, ChangeFeed
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events

BEAT = 1.0  # seconds between two heartbeats of the maintainer at most
_COARSE = 0.01  # seconds; shorter waits need a better resolution than milliseconds
_BUSY_PAUSE = 0.005  # seconds without listening when no worker is idle, at least
_LONGEST_PAUSE = 0.025
_BUSY_SHARE = 0.2  # of the time for which no worker has been idle
_SOON = 1.0  # seconds
_FRUITLESS_PAUSE = 0.0005  # seconds more for each check in a row that woke nobody: commits of busy workers
_QUIET = 0.05  # seconds after which checks are no longer "in a row"


_NOTHING, _NEWS = Result(), Result(news=True)


class CommitWatch(Duty):
    """Notices commits as they happen, so that the other duties can react. It listens while there are idle workers.

    The feed's descriptor is only a hint: after one, the version is checked repeatedly, at the intervals that the feed
    asks for. Without hints nothing is lost: polling finds the change a second later. All times are seconds of `clock`.
    """

    name = "changes"
    every = 1.0  # seconds: the safety net
    quiet = True

    def __init__(self, feed: ChangeFeed, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock
        self._version = -1
        self._window = HintWindow(feed.window)
        self._checked = 0.0
        self._idle_at = clock()
        self._deaf_until = 0.0
        self._looked = 0.0
        self._fruitless = 0
        self._problem = ""

    def fileno(self) -> int | None:
        return self._feed.fileno()

    def listening(self) -> bool:
        """Whether a hint should end the maintainer's sleep."""
        return self._clock() >= self._deaf_until

    def take_hints(self) -> None:
        """Consume the hints and open the window."""
        if self._feed.drain():
            self._window.open(self._clock())

    def next_at(self, now: float) -> float | None:
        """The next check within the window."""
        return None if self.check_at is None else now + self.check_at - self._clock()

    @property
    def check_at(self) -> float | None:
        """The same in seconds of `clock`."""
        return self._deaf_until if self._deaf_until > self._window.opened else self._window.next_after(self._checked)

    def run(self, now: float) -> Result:
        at = self._clock()
        self._deaf_until = 0.0
        self._checked = at
        if self._feed.problem != self._problem:
            self._problem = self._feed.problem
            if self._problem:
                log = events(process="maintainer")
                log.warning("notifications_missing", error=self._problem, poll_seconds=self.every)
        version = self._feed.version()
        if version == self._version:
            self._listen(at)
            return _NOTHING
        self._version = version
        self._window.found()
        return _NEWS

    def woke(self, *, idle: bool, woken: int) -> None:
        """The result of the last check: whether any worker was idle, and how many were woken."""
        at = self._clock()
        if idle:
            self._idle_at = at
            self._listen(at)
        else:
            # A worker that becomes idle checks the queue itself first, so nothing is lost by not listening briefly.
            self._deaf_until = at + min(max(_BUSY_PAUSE, (at - self._idle_at) * _BUSY_SHARE), _LONGEST_PAUSE)
            self._feed.pause()
        self._fruitless = 0 if woken or at - self._looked > _QUIET else self._fruitless + 1
        self._looked = at
        if self._fruitless:
            self._deaf_until = max(self._deaf_until, at + min(self._fruitless * _FRUITLESS_PAUSE, _BUSY_PAUSE))

    def _listen(self, at: float) -> None:
        if self._feed.resume():
            self._window.open(at)  # what was committed before this gave no hint: act as if one had come

    def close(self) -> None:
        self._feed.close()


class Waker(Duty):
    """Wakes min(idle workers, due jobs) of each pool, at every change. `is_open` says whether they may claim now."""

    name = "waking"
    every = 60.0  # seconds, when nothing changes
    rest = 0.0
    quiet = True

    def __init__(
        self,
        backlog: Backlog,
        board: Scoreboard,
        pools: Mapping[str, PoolOrders],
        watch: CommitWatch,
        is_open: Callable[[], bool] = lambda: True,
    ) -> None:
        self._backlog = backlog
        self._board = board
        self._pools = pools
        self._watch = watch
        self._is_open = is_open
        self._items: Items[str] = Items("pool")
        self._next_due = inf

    def next_at(self, now: float) -> float | None:
        again = self._items.next_try(now)
        return min(self._next_due, inf if again is None else again)

    def run(self, now: float) -> Result:
        idle = self._board.idle()
        self._items.keep(set(idle))  # a pool without idle workers is not tried
        ours = [name for name in idle if name in self._pools] if self._is_open() else []
        self._next_due = inf
        result = self._items.each(ours, lambda name: self._wake(self._pools[name], idle[name], now))
        # A job that is due soon may be followed by another one as soon as it starts: that of a rate.
        self._watch.woke(idle=bool(idle), woken=result.done or self._next_due < now + _SOON)
        return Result(result.done, problem=result.problem)

    def _wake(self, pool: PoolOrders, idle: int, now: float) -> int:
        first = self._backlog.any_due(pool.wanted, now)
        if first:
            wake_workers(pool.wake, 1)  # it wakes up while we count
        depth = self._backlog.depth(pool.wanted, now, idle)
        if min(idle, depth.due) > first:
            wake_workers(pool.wake, min(idle, depth.due) - first)
        if depth.next_due is not None:
            self._next_due = min(self._next_due, depth.next_due)
        return depth.due


def wake_workers(eventfd: int, workers: int) -> None:
    """Wake this many of a pool's idle workers."""
    with contextlib.suppress(BlockingIOError):  # a handler has filled it, so nobody sleeps
        os.eventfd_write(eventfd, workers)


class Sleep:
    """The time between duties. It ends when one is due, something was committed, or a message has come."""

    def __init__(self, channel: Channel, watch: CommitWatch, waker: Waker) -> None:
        self._watch = watch
        self._waker = waker
        self._poll = select.epoll()
        self._poll.register(channel.fileno(), select.EPOLLIN)
        self._hints = watch.fileno()
        self._listening = False

    def until_due(self, scheduler: Scheduler) -> bool:
        """Returns whether there are messages.

        Looking for changes is repeated here, and not with all other duties: it is done many times for a commit.
        """
        until = min(scheduler.next_at(apart=self._watch), time.monotonic() + BEAT)
        changes = scheduler.changes
        while True:
            ready = self._once(scheduler, until)
            if ready - {self._hints}:
                return True
            able = scheduler.may_run(self._watch)
            if not able or scheduler.changes != changes or time.monotonic() >= until:
                return False

    def _once(self, scheduler: Scheduler, until: float) -> set[int]:
        """Until then, in monotonic seconds, at most; then look for changes if it is time. Returns what is readable."""
        able = scheduler.may_run(self._watch)
        self._listen(able and self._watch.listening())
        check = (self._watch.check_at if able else None) or inf
        patience = max(0.0, min(until, check) - time.monotonic())
        if patience < _COARSE:  # epoll counts in whole milliseconds
            select.select([self._poll.fileno()], [], [], patience)
            patience = 0.0
        ready = {descriptor for descriptor, _ in self._poll.poll(patience)}
        if self._hints in ready:
            self._watch.take_hints()
        if self._hints in ready or check <= time.monotonic():
            scheduler.hasten(self._watch)
            scheduler.attend(self._watch, self._waker)  # there may be a job, and every microsecond counts
        return ready

    def _listen(self, listening: bool) -> None:
        """Let hints end the wait or not: without idle workers they can be read later."""
        if self._hints is None or listening == self._listening:
            return
        self._listening = listening
        if listening:
            self._poll.register(self._hints, select.EPOLLIN)
        else:
            self._poll.unregister(self._hints)
