"""Wakes idle workers as soon as there may be a job, no matter who inserted it."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Result
from supervisor.maintenance.changes import CommitWatch
from supervisor.maintenance.items import Items
from supervisor.maintenance.slot_reader import SlotReader
from supervisor.store.base import Backlog, JobSelector


@dataclass(frozen=True, slots=True)
class Woken(Result):
    posted: int = 0


class Waker(Duty):
    """Posts min(idle workers, due jobs) to each pool, at every change.

    `pools` maps a pool's name to what it wants and the eventfd on which its idle workers sleep. `claiming` tells
    whether they may claim at all, `admitted` what of it.
    """

    name = "waking"
    every = 60.0  # seconds, when nothing changes
    rest = 0.0
    quiet = True

    def __init__(
        self,
        backlog: Backlog,
        slots: SlotReader,
        pools: Mapping[str, tuple[JobSelector, int]],
        watch: CommitWatch,
        claiming: Callable[[], bool] = lambda: True,
        admitted: Callable[[JobSelector], JobSelector] = lambda wanted: wanted,
    ) -> None:
        self._backlog = backlog
        self._slots = slots
        self._pools = pools
        self._watch = watch
        self._claiming = claiming
        self._admitted = admitted
        self._failing: Items[str] = Items("pool")

    def next_at(self, now: float) -> float | None:
        return self._failing.next_try(now)

    def run(self, now: float) -> Woken:
        idle = self._slots.idle() if self._claiming() else Counter[str]()
        self._failing.keep(set(idle))  # a pool without idle workers is not tried
        posted = 0
        for name, count in idle.items():
            if name in self._pools and self._failing.ready(name):
                with self._failing.attempt(name):
                    posted += self._wake(*self._pools[name], count, now)
        self._watch.woke(anybody=bool(idle), posted=posted)
        return Woken(posted, problem=self._failing.problem)

    def _wake(self, wanted: JobSelector, eventfd: int, idle: int, now: float) -> int:
        wanted = self._admitted(wanted)
        first = self._backlog.any_due(wanted, now)
        if first:
            post(eventfd, 1)  # it wakes up while we count
        due = self._backlog.depth(wanted, now, idle).due
        if min(idle, due) > first:
            post(eventfd, min(idle, due) - first)
        return due


def post(eventfd: int, workers: int) -> None:
    """Wake this many of a pool's idle workers."""
    with contextlib.suppress(BlockingIOError):  # a handler has filled it, so nobody sleeps
        os.eventfd_write(eventfd, workers)
