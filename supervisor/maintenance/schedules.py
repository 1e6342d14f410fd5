"""Schedules: enqueues a job when its time has come, and copes with a clock that was set back."""

from __future__ import annotations

from math import inf

from supervisor.domain.duty import Duty, Needs, Result, moved
from supervisor.domain.job import NewJob
from supervisor.domain.schedule import GRACE, Schedule, firing
from supervisor.store.base import Backlog, Planned, Schedules
from supervisor.telemetry import events

_LOOK_FOR_RESUME = 0.5  # seconds between two looks, and only if something was committed
_LATE = 0.0005  # seconds after its time, so that the time has come for sure


class FireSchedule(Duty):
    """One schedule, so that each fails on its own. If several supervisors have it, the database decides which fires."""

    every = 60.0  # seconds; its own time is exact
    needs = Needs.WRITING

    def __init__(self, schedules: Schedules, schedule: Schedule) -> None:
        self.name = f"schedule {schedule.name}"
        self._schedules = schedules
        self._schedule = schedule
        self._planned: Planned | None = None
        self._ran_at = 0.0
        self._log = events(process="maintainer")

    def next_at(self, now: float) -> float | None:
        if self._planned is None or self._planned.paused_at is not None:
            return None
        return now if now < self._ran_at else self._planned.next_at + _LATE  # at once if the clock was set back

    def run(self, now: float) -> Result:
        """Plan it the first time; then fire it when it is due. While it is paused, look whether it still is."""
        self._ran_at = now
        schedule = self._schedule
        if self._planned is None:
            self._planned = self._plan(next(schedule.after(now)))
        elif self._planned.paused_at is not None:
            self._planned = self._plan(self._planned.next_at)
        if self._planned.paused_at is not None:
            return Result()
        before = self._planned.next_at
        decision = firing(schedule, before, now)
        if decision.next_at == before:
            return Result()
        key = schedule.unique_key
        jobs = [NewJob(schedule.type, schedule.payload, scheduled_at=at, unique_key=key) for at in decision.times]
        ids = self._schedules.fire(self._planned, jobs, decision.next_at, now)
        # Advanced by us or by a peer, or paused: in any case the row has the next time.
        self._planned = self._plan(decision.next_at)
        if ids is None:
            return Result()
        told = {"schedule": schedule.name, "type": schedule.type, "next_at": self._planned.next_at}
        if before > now:
            self._log.warning("schedule_replanned", schedule=schedule.name, planned=before, next_at=decision.next_at)
        elif jobs and not ids:
            self._log.info("schedule_skipped", unique_key=key, **told)
        else:
            self._log.info("schedule_fired", jobs=ids, missed=decision.missed, **told)
        return Result(len(ids))

    def _plan(self, next_at: float) -> Planned:
        """The row as it is now; changes matter only while it is paused: it may be resumed."""
        schedule = self._schedule
        planned = self._schedules.plan(
            schedule.name, schedule.timing, next_at, type=schedule.type, payload=schedule.payload
        )
        self.rest = None if planned.paused_at is None else _LOOK_FOR_RESUME
        return planned


class ClockWatch(Duty):
    """At the start, and after the clock was set back, the delays of retries count from now if they would otherwise
    count from a later time; what was due when it was enqueued is due again.
    """

    name = "delays after a change of the clock"
    every = GRACE  # seconds: no larger step back remains unseen
    needs = Needs.WRITING

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._looked_at = inf  # Unix seconds
        self._log = events(process="maintainer")

    def next_at(self, now: float) -> float | None:
        return now if now < self._looked_at else None

    def run(self, now: float) -> Result:
        if now < self._looked_at:
            jobs = self._backlog.bring_forward(now, now + GRACE)
            if jobs:
                self._log.warning("delays_counted_again", jobs=jobs)
                return moved(jobs, more=True)  # there may be others
        self._looked_at = now
        return Result()
