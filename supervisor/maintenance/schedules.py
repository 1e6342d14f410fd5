"""Fire schedules: put a job into the queue when its time has come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from supervisor.domain.job import NewJob
from supervisor.domain.schedule import Schedule, firing
from supervisor.store.base import Planned, Timetable
from supervisor.telemetry import events


@dataclass(frozen=True, slots=True)
class Fired:
    jobs: int = 0


class Schedules:
    """Several supervisors may have the same schedules: the database decides who fires.

    `timetable` connects at the first need, so that a configuration without schedules has no such connection.
    """

    every = 1.0  # seconds, when no schedule is due before

    def __init__(self, timetable: Callable[[], Timetable], schedules: Sequence[Schedule]) -> None:
        self._connect = timetable
        self._timetable: Timetable | None = None
        self._schedules = {schedule.name: schedule for schedule in schedules}
        self._planned: dict[str, Planned] = {}
        self._log = events(process="maintainer")

    @property
    def next_due(self) -> float | None:
        """When the next schedule fires, in Unix seconds."""
        return min((planned.next_at for planned in self._planned.values()), default=None)

    def run_once(self, now: float) -> Fired:
        """Fire what is due. `now` is Unix seconds."""
        if not self._schedules:
            return Fired()
        if self._timetable is None:
            self._timetable = self._connect()
            self._planned = {
                name: self._timetable.plan(name, schedule.timing, next(schedule.after(now)))
                for name, schedule in self._schedules.items()
            }
        due = [planned for planned in self._planned.values() if planned.next_at <= now]
        return Fired(sum(self._fire(self._timetable, planned, now) for planned in due))

    def _fire(self, timetable: Timetable, planned: Planned, now: float) -> int:
        schedule = self._schedules[planned.name]
        decision = firing(schedule, planned.next_at, now)
        jobs = [NewJob(schedule.type, schedule.payload, scheduled_at=at) for at in decision.times]
        ids = timetable.fire(planned, jobs, decision.next_at, now)
        # Moved by us or by a peer: either way the row says what is next.
        self._planned[planned.name] = current = timetable.plan(schedule.name, schedule.timing, decision.next_at)
        if ids is None:
            return 0
        self._log.info(
            "schedule_fired",
            schedule=schedule.name,
            type=schedule.type,
            jobs=ids,
            missed=decision.missed,
            next_at=current.next_at,
        )
        return len(ids)

    def close(self) -> None:
        if self._timetable is not None:
            self._timetable.close()
