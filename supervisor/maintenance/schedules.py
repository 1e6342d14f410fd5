"""Schedules: enqueues a job when its time has come, and copes with a clock that was set back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from math import inf
from typing import Any

from supervisor.domain.duty import Duty, Needs, Result, moved
from supervisor.domain.job import NewJob
from supervisor.domain.schedule import GRACE, Schedule, firing
from supervisor.maintenance.scheduler import ITEMS_BOUND, Items
from supervisor.store.base import Backlog, Gates, Planned, Schedules
from supervisor.telemetry import events

_LOOK_FOR_RESUME = 0.5  # seconds between two looks, and only if something was committed
_LATE = 0.0005  # seconds after its time, so that the time has come for sure
_LOOK_FOR_SUCCESS = 2.0  # seconds: less than the shortest time for which a job is kept


class FireSchedule(Duty):
    """One schedule, so that each fails on its own. If several supervisors have it, the database decides which fires.
    `planned` is the row of one that was made at run time; a configuration's makes its own, and takes over another one.
    """

    every = 60.0  # seconds; its own time is exact
    needs = Needs.WRITING

    def __init__(self, schedules: Schedules, schedule: Schedule, planned: Planned | None = None) -> None:
        self.name = f"schedule {schedule.name}"
        self._schedules = schedules
        self._schedule = schedule
        self._made = planned is not None
        self.planned = planned
        self._ran_at = 0.0
        self._log = events(process="maintainer")

    def next_at(self, now: float) -> float | None:
        if self.planned is None or self.planned.paused_at is not None:
            return None
        return now if now < self._ran_at else self.planned.next_at + _LATE  # at once if the clock was set back

    def run(self, now: float) -> Result:
        """Plan it the first time; then fire it when it is due. While it is paused, look whether it still is."""
        self._ran_at = now
        schedule = self._schedule
        if self.planned is None or not self.planned.next_at:
            self.planned = self._plan(schedule.first(now), now)
        elif self.planned.paused_at is not None:
            self.planned = self._plan(self.planned.next_at, now)
        if self.planned.paused_at is not None:
            return Result()
        before = self.planned.next_at
        decision = firing(schedule, before, now)
        if decision.next_at == before:
            return Result()
        key = schedule.unique_key
        job = NewJob(schedule.type, schedule.payload, priority=schedule.priority, unique_key=key)
        jobs = [job._replace(scheduled_at=at) for at in decision.times]
        ids = self._schedules.fire(self.planned, jobs, decision.next_at, now)
        # Advanced by us or by a peer, or paused: in any case the row has the next time.
        self.planned = self._plan(decision.next_at, now)
        if ids is None:
            return Result()
        told = {"schedule": schedule.name, "type": schedule.type, "next_at": self.planned.next_at}
        if before > now:
            self._log.warning("schedule_replanned", schedule=schedule.name, planned=before, next_at=decision.next_at)
        elif jobs and not ids:
            self._log.info("schedule_skipped", unique_key=key, **told)
        else:
            self._log.info("schedule_fired", jobs=ids, missed=decision.missed, **told)
        return Result(len(ids))

    def _plan(self, next_at: float, now: float) -> Planned:
        """The row as it is now; changes matter only while it is paused: it may be resumed."""
        schedule = self._schedule
        found = self._schedules.one(schedule.name) if self._made or self.planned is None else None
        made = found.definition if found is not None else None
        if self._made:  # if it was removed, or taken over, nothing fires
            return found if found is not None and made else Planned(schedule.name, "", next_at, paused_at=now)
        if made:
            self._log.warning("schedule_taken_over", schedule=schedule.name, definition=made[:1000])
        planned = self._schedules.plan(next_at=next_at, **schedule.columns(now))
        self.rest = None if planned.paused_at is None else _LOOK_FOR_RESUME
        return planned


class FireSchedulesMade(Duty):
    """Those that were made at run time: all are read again when the controls tell another number of changes, and each
    fails on its own. If success is expected, as `expecting` of those in the configuration, it looks for that of all.

    `schedule_of` makes a schedule of a name and the keys of its definition.
    """

    name = "schedules made at run time"
    every = 60.0
    needs = Needs.WRITING

    def __init__(self, schedules: Schedules, schedule_of: Callable[[str, Any], Schedule], *, expecting: bool) -> None:
        self._schedules, self._schedule_of, self._expecting = schedules, schedule_of, expecting
        self.rest = _LOOK_FOR_SUCCESS if expecting else None
        self._changes = self._read = 0
        self._made: dict[str, Planned] = {}
        self._items: Items[str] = Items("schedule")
        self._ran_at = inf  # at first each is looked at, as after a step of the clock
        self._next: float | None = None

    def heed(self, changes: int) -> None:
        self._changes = changes

    def next_at(self, now: float) -> float | None:
        return now if self._changes != self._read or now < self._ran_at else self._next

    def run(self, now: float) -> Result:
        if (changes := self._changes) != self._read:
            self._made = {row.name: row for row in self._schedules.planned() if row.definition is not None}
            expecting = self._expecting or any(row.expect_within is not None for row in self._made.values())
            self.rest = _LOOK_FOR_SUCCESS if expecting else None
            self._items.keep(self._made.keys())
            self._read = changes
        due = [row for row in self._firing() if row.next_at <= now or now < self._ran_at]
        names = [row.name for row in sorted(due, key=lambda row: row.next_at)]
        result = self._items.each(names, lambda name: self._fire(name, now), until=time.monotonic() + ITEMS_BOUND)
        if not result.more:
            self._ran_at = now
        coming = [row.next_at + _LATE for row in self._firing() if not self._items.fails(row.name)]
        again = self._items.next_try(now)
        self._next = min([*coming, *([] if again is None else [again])], default=None)
        if self.rest is not None:
            self._schedules.note_successes()
        return result

    def _firing(self) -> Iterator[Planned]:
        """Without those that are paused, and those with a time that is none: a stranger has written it."""
        return (row for row in self._made.values() if row.paused_at is None and row.next_at)

    def _fire(self, name: str, now: float) -> int:
        row = self._made[name]
        one = FireSchedule(self._schedules, self._schedule_of(name, json.loads(row.definition or "")), row)
        done = one.run(now).done
        self._made[name] = one.planned or row
        return done


class ClockWatch(Duty):
    """At the start, and after the clock was set back, the delays of retries count from now if they would otherwise
    count from a later time; what was due when it was enqueued is due again. While it runs, rates count from now, too.
    """

    name = "delays after a change of the clock"
    every = GRACE  # seconds: no larger step back remains unseen
    needs = Needs.WRITING

    def __init__(self, backlog: Backlog, gates: Gates) -> None:
        self._backlog, self._gates = backlog, gates
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
            if self._looked_at < inf:
                self._gates.count_from(now)
        self._looked_at = now
        return Result()
