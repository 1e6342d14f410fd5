"""Retries failed jobs automatically, if a pool is configured to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from supervisor.domain.duty import Duty, Moved, Needs
from supervisor.maintenance.items import Items
from supervisor.store.base import Cursor, FinishedJobs, JobSelector
from supervisor.telemetry import events

_ROWS = 500  # failed jobs per run and pool
_START = Cursor(0.0, 0)


class RedrivePolicy(NamedTuple):
    """A pool's setting: retry `every` seconds after the failure, each job at most `times` times."""

    wanted: JobSelector
    every: float
    times: int


class Redriver(Duty):
    """Walks the failed jobs in the order of their failures, each when its wait is over.

    It never goes back: a job that fails again is at the end again. A new maintainer starts from the beginning.
    """

    name = "retries of failed jobs"
    needs = Needs.WRITING

    def __init__(self, finished: FinishedJobs, chances: Iterable[RedrivePolicy]) -> None:
        self._finished = finished
        self._reached = dict.fromkeys(chances, _START)
        self._failing: Items[RedrivePolicy] = Items("types")
        self._log = events(process="maintainer")
        # Accurate to a twentieth of the interval; a run without anything to do costs one seek.
        self.every = min(max(min(chance.every for chance in self._reached) / 20, 0.5), 60.0)

    def run(self, now: float) -> Moved:
        """`now` is Unix seconds."""
        jobs = 0
        for chance in self._reached:
            if self._failing.ready(chance):
                with self._failing.attempt(chance, " ".join(chance.wanted.types)):
                    jobs += self._redrive(chance, now)
        return Moved(jobs, problem=self._failing.problem)

    def _redrive(self, chance: RedrivePolicy, now: float) -> int:
        rested, reached = now - chance.every, self._reached[chance]
        if reached.failed_at > rested:
            reached = _START  # the clock was set back: what fails now comes before what we have seen
        redriven, self._reached[chance] = self._finished.redrive(
            chance.wanted, chance.times, reached, rested, _ROWS, now
        )
        if redriven:
            self._log.info("failed_jobs_revived", types=list(chance.wanted.types), jobs=redriven)
        return len(redriven)
