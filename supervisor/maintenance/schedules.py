"""Fires schedules: enqueues a job when its time has come."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.job import NewJob
from supervisor.domain.schedule import Schedule, firing
from supervisor.store.base import Planned, Schedules
from supervisor.telemetry import events

_LATE = 0.0005  # seconds after its time, so that the time has come for sure


@dataclass(frozen=True, slots=True)
class Fired(Result):
    jobs: int = 0


class FireSchedule(Duty):
    """One schedule, so that each fails on its own. If several supervisors have it, the database decides which fires."""

    every = 60.0  # seconds; its own time is exact
    needs = Needs.WRITING

    def __init__(self, schedules: Schedules, schedule: Schedule) -> None:
        self.name = f"schedule {schedule.name}"
        self._schedules = schedules
        self._schedule = schedule
        self._planned: Planned | None = None
        self._log = events(process="maintainer")

    def next_at(self, now: float) -> float | None:
        return None if self._planned is None else self._planned.next_at + _LATE

    def run(self, now: float) -> Fired:
        """Plan it the first time; then fire it when it is due."""
        schedule = self._schedule
        if self._planned is None:
            self._planned = self._schedules.plan(schedule.name, schedule.timing, next(schedule.after(now)))
            return Fired()
        if self._planned.next_at > now:
            return Fired()
        decision = firing(schedule, self._planned.next_at, now)
        jobs = [NewJob(schedule.type, schedule.payload, scheduled_at=at) for at in decision.times]
        ids = self._schedules.fire(self._planned, jobs, decision.next_at, now)
        # Advanced by us or by a peer: either way the row has the next time.
        self._planned = self._schedules.plan(schedule.name, schedule.timing, decision.next_at)
        if ids is None:
            return Fired()
        self._log.info(
            "schedule_fired",
            schedule=schedule.name,
            type=schedule.type,
            jobs=ids,
            missed=decision.missed,
            next_at=self._planned.next_at,
        )
        return Fired(len(ids))
