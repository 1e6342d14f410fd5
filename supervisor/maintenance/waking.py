"""Wakes idle workers as soon as there may be a job, no matter who inserted it."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable, Mapping
from math import inf

from supervisor.domain.duty import Duty, Result
from supervisor.maintenance.orders import PoolOrders
from supervisor.maintenance.scheduler import Items, Scheduler
from supervisor.store.base import Backlog, ChangeFeed
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events

BEAT = 1.0  # seconds between two heartbeats of the maintainer at most
_BUSY_PAUSE = 0.005  # seconds without listening when no worker is idle, at least
_LONGEST_PAUSE = 0.025
_BUSY_SHARE = 0.2  # of the time for which no worker has been idle
_SOON = 1.0  # seconds
_AGAIN, _SELDOM = 5.0, 60.0  # seconds between two looks when nothing changes: if jobs are due, and if none is
_FRUITLESS_PAUSE = 0.0005  # seconds more for each check in a row that woke nobody: commits of others, or busy workers
_QUIET = 0.05  # seconds after which checks are no longer "in a row"


_NOTHING, _NEWS = Result(), Result(news=True)


class CommitWatch(Duty):
    """Notices commits as they happen, so that the other duties can react. While there are idle workers it is
    `listening`: a hint ends the maintainer's sleep. Nothing is lost without hints, only noticed later.
    """

    name = "changes"
    every = 1.0
    quiet = True

    def __init__(self, feed: ChangeFeed, clock: Callable[[], float] = time.monotonic) -> None:
        self._feed = feed
        self._clock = clock
        self.version = -1
        self.listening = True
        self._next = self._idle_at = clock()  # times are seconds of `clock`
        self._calm_until = self._looked = 0.0
        self._fruitless = 0
        self._problem = ""

    def fileno(self) -> int | None:
        return self._feed.fileno()

    def take_hints(self) -> None:
        self._feed.drain(self._calm_until - self._clock())

    def next_at(self, now: float) -> float | None:
        return now + max(0.0, self._next - self._clock())

    def run(self, now: float) -> Result:
        at = self._clock()
        self.listening = True
        if self._feed.problem != self._problem:
            self._problem = self._feed.problem
            if self._problem:
                log = events(process="maintainer")
                log.warning("notifications_missing", error=self._problem, poll_seconds=self.every)
        version = self._feed.version()
        self._next = inf if self._feed.fileno() is None else at + self._feed.unhinted
        found, self.version = version != self.version, version
        if found:
            return _NEWS
        self._listen(at)
        return _NOTHING

    def woke(self, *, idle: bool, woken: int) -> None:
        """The result of the last check: whether any worker was idle, and how many were woken."""
        at = self._clock()
        self.listening = idle
        if idle:
            self._idle_at = at
            self._listen(at)
        else:
            # A worker that becomes idle checks the queue itself first, so nothing is lost by not listening briefly.
            self._next = at + min(max(_BUSY_PAUSE, (at - self._idle_at) * _BUSY_SHARE), _LONGEST_PAUSE)
            self._feed.pause()
        self._fruitless = 0 if woken or at - self._looked > _QUIET else self._fruitless + 1
        self._looked = at
        self._calm_until = at + min(self._fruitless * _FRUITLESS_PAUSE, _BUSY_PAUSE)

    def _listen(self, at: float) -> None:
        if self._feed.resume():
            self._next = at  # what was committed before this gave no hint

    def close(self) -> None:
        self._feed.close()


class Waker(Duty):
    """Wakes min(idle workers, due jobs) of each pool, at every change. `is_open` says whether they may claim now."""

    name = "waking"
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
        self._next_due = self._idle_again = inf
        self._version = -1
        self._pause = _LONGEST_PAUSE
        self.every = _SELDOM

    def next_at(self, now: float) -> float | None:
        again = self._items.next_try(now)
        return min(self._next_due, self._idle_again, inf if again is None else again)

    def run(self, now: float) -> Result:
        idle = self._board.idle()
        self._items.keep(set(idle))  # a pool without idle workers is not tried
        ours = [name for name in idle if name in self._pools] if self._is_open() else []
        # A worker becomes idle soon after it has settled, which is the last change: what is due later is not known yet.
        self._pause = min(4 * self._pause, _AGAIN) if self._version == self._watch.version else _LONGEST_PAUSE
        self._version = self._watch.version
        self._idle_again = inf if len(ours) == len(self._pools) else now + self._pause
        self._next_due = inf
        result = self._items.each(ours, lambda name: self._wake(self._pools[name], idle[name], now))
        self.every = _AGAIN if result.done else _SELDOM  # whoever was woken may have died
        # A job that is due soon may be followed by another one as soon as it starts: that of a rate.
        self._watch.woke(idle=bool(idle), woken=result.done or self._next_due < now + _SOON)
        return Result(result.done, problem=result.problem)

    def _wake(self, pool: PoolOrders, idle: int, now: float) -> int:
        first = self._backlog.any_due(pool.wanted, now)
        if first:
            wake_workers(pool.wake, 1)  # it wakes up while we count
        elif first is False:
            return 0
        depth = self._backlog.depth(pool.wanted, now, idle)
        if (more := min(idle, depth.due) - bool(first)) > 0:
            wake_workers(pool.wake, more)
        if depth.next_due is not None:
            self._next_due = min(self._next_due, depth.next_due)
        return depth.due


def wake_workers(eventfd: int, workers: int) -> None:
    """Wake this many of a pool's idle workers."""
    with contextlib.suppress(BlockingIOError):  # a handler has filled it, so nobody sleeps
        os.eventfd_write(eventfd, workers)


class Sleep:
    """The time between duties. It ends when one is due, or a message has come."""

    def __init__(self, channel: Channel, watch: CommitWatch, *urgent: Duty) -> None:
        self._channel = channel.fileno()
        self._watch = watch
        self._urgent = (watch, *urgent)

    def until_due(self, scheduler: Scheduler) -> bool:
        """Returns whether there are messages.

        Looking for changes, and what is urgent after one, is part of this: it is done often, and must be quick.
        """
        last = time.monotonic() + BEAT
        until = min(scheduler.next_at(), last)
        while True:
            hints = self._watch.fileno() if self._watch.listening and scheduler.may_run(self._watch) else None
            descriptors = [self._channel] if hints is None else [self._channel, hints]
            ready = select.select(descriptors, [], [], max(0.0, until - time.monotonic()))[0]
            if hints in ready:
                self._watch.take_hints()
                scheduler.hasten(self._watch)
            scheduler.attend(*self._urgent)
            until = min(scheduler.next_at(), last)
            if self._channel in ready or until <= time.monotonic():
                return self._channel in ready
