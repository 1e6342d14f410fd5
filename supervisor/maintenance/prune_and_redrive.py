"""Finished jobs: deleted after their retention, and failed ones retried where a pool is configured to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.maintenance.orders import PoolOrders
from supervisor.maintenance.scheduler import Items
from supervisor.store.base import Cursor, FinishedJobs
from supervisor.telemetry import events

_ROWS_PRUNED = 2000  # per run
_PRUNING_REST = 0.2  # seconds between two runs while there is something to delete: others write, too
_LEAST_KEPT = 10.0  # seconds: for those who wait for a result, or ask for it again after a crash
_NEVER = 0.0


class Pruner(Duty):
    """Walks the table in the order of ids, and starts again at its end. `done`, `failed`: seconds or None; 10 at
    least.
    """

    name = "pruning"
    every = 30.0
    needs = Needs.WRITING

    def __init__(self, finished: FinishedJobs, done: float | None, failed: float | None) -> None:
        self._finished = finished
        self._done = done
        self._failed = failed
        self._reached = 0
        self._again: float | None = None

    def next_at(self, now: float) -> float | None:
        return self._again

    def run(self, now: float) -> Result:
        """`now` is Unix seconds."""
        if self._done is None and self._failed is None:
            return Result()
        deleted, self._reached = self._finished.prune(
            self._reached,
            _ROWS_PRUNED,
            _NEVER if self._done is None else now - max(_LEAST_KEPT, self._done),
            _NEVER if self._failed is None else now - max(_LEAST_KEPT, self._failed),
        )
        self._again = now + _PRUNING_REST if deleted else None
        return Result(deleted)


_ROWS_REDRIVEN = 500  # failed jobs per run and pool
_START = Cursor(0.0, 0)
_BACK_AFTER = 60.0  # seconds, or the pool's interval: what was held is looked at again no sooner


@dataclass(slots=True)
class _Walk:
    """Through the failed jobs: the cursor, the position before the first job that was held, and when it began."""

    reached: Cursor = _START
    held: Cursor | None = None
    began: float = 0.0
    more: bool = False


class Redriver(Duty):
    """Walks the failed jobs in the order of their failures, each when its wait is over.

    A job that fails again is at the end again. A job is held while an unfinished one has its unique key. At the end,
    the walk starts again from the first of these. A new maintainer starts from the beginning.
    """

    name = "retries of failed jobs"
    needs = Needs.WRITING

    def __init__(self, finished: FinishedJobs, pools: Iterable[PoolOrders]) -> None:
        self._finished = finished
        self._walks = {pool: _Walk() for pool in pools}
        self._items: Items[PoolOrders] = Items("types")
        self._log = events(process="maintainer")
        # Accurate to a twentieth of the interval; a run without anything to do costs one seek.
        self.every = min(max(min(pool.redrive_every for pool in self._walks) / 20, 0.5), 60.0)

    def run(self, now: float) -> Result:
        """`now` is Unix seconds."""
        result = self._items.each(
            self._walks, lambda pool: self._redrive(pool, now), lambda pool: " ".join(pool.wanted.types)
        )
        more = any(walk.more and not self._items.fails(pool) for pool, walk in self._walks.items())
        return result._replace(more=more)

    def _redrive(self, pool: PoolOrders, now: float) -> int:
        rested, walk = now - pool.redrive_every, self._walks[pool]
        if walk.reached.failed_at > rested:
            walk = _Walk(began=now)  # the clock was set back: what fails now comes before what we have seen
        elif walk.held and not walk.more and abs(now - walk.began) >= min(pool.redrive_every, _BACK_AFTER):
            walk = _Walk(walk.held, began=now)
        found = self._finished.redrive(pool.wanted, pool.redrive_times, walk.reached, rested, _ROWS_REDRIVEN, now)
        self._walks[pool] = _Walk(found.reached, walk.held or found.held, walk.began, found.more)
        if found.jobs:
            self._log.info("failed_jobs_revived", types=list(pool.wanted.types), jobs=list(found.jobs))
        return len(found.jobs)
