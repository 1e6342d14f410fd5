"""Deletes finished jobs past their retention, a bounded number of rows at a time."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.store.base import FinishedJobs

_ROWS = 2000  # per run
_REST = 0.2  # seconds between two runs while there is something to delete: others write, too
_LEAST = 10.0  # seconds: for those who wait for a result, or ask for it again after a crash
_NEVER = 0.0


@dataclass(frozen=True, slots=True)
class Pruned(Result):
    jobs: int = 0
    reached: int = 0


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

    def run(self, now: float) -> Pruned:
        """`now` is Unix seconds."""
        if self._done is None and self._failed is None:
            return Pruned()
        deleted, self._reached = self._finished.prune(
            self._reached,
            _ROWS,
            _NEVER if self._done is None else now - max(_LEAST, self._done),
            _NEVER if self._failed is None else now - max(_LEAST, self._failed),
        )
        self._again = now + _REST if deleted else None
        return Pruned(deleted, self._reached)
