"""Schedules: each time fires once, no matter who is killed and how many supervisors have the schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

from supervisor.domain.intake import known_time
from supervisor.domain.job import NewJob
from supervisor.store.base import Planned
from supervisor.store.sql.connection import Opened, Transaction


class SqlSchedules:
    """Implements `store.base.Schedules`. Its connection commits durably; it is opened at first use."""

    def __init__(self, connect: Callable[[], Opened]) -> None:
        self._connect = connect
        self._opened: Opened | None = None

    @property
    def _connection(self) -> Opened:
        if self._opened is None:
            self._opened = self._connect()
        return self._opened

    def planned(self) -> list[Planned]:
        return [_read(row) for row in self._connection.rows(self._connection.queries.schedules)]

    def plan(self, name: str, timing: str, next_at: float, *, type: str = "", payload: str = "{}") -> Planned:
        wanted = Planned(name, timing, next_at, type=type, payload=payload)
        found = self._planned(name)
        known = found is not None and found.next_at  # a stranger may have written what is no time
        if not known or found is None or (found.timing, found.type, found.payload) != (timing, type, payload):
            self._connection.apply(self._connection.queries.plan, asdict(wanted))
            found = self._planned(name)
        return found or wanted

    def _planned(self, name: str) -> Planned | None:
        row = self._connection.row(self._connection.queries.schedule, {"name": name})
        return None if row is None else _read(row)

    def fire(self, planned: Planned, jobs: Sequence[NewJob], next_at: float, now: float) -> list[int] | None:
        which = {"name": planned.name, "timing": planned.timing, "planned": planned.next_at, "next_at": next_at}
        connection = self._connection

        def fire(raw: Transaction) -> list[int] | None:
            if not raw.execute(connection.queries.move_on, which).rowcount:
                return None
            ids = []
            for job in jobs:
                job_id = connection.inserter.insert(raw, job, now)
                if job_id is None:
                    continue  # the job of an earlier time is unfinished
                ids.append(job_id)
                fired = {"name": planned.name, "last_at": job.scheduled_at, "last_job": ids[-1]}
                raw.execute(connection.queries.note_fired, fired)
            return ids

        return connection.inserter.with_room(fire)

    def pause(self, name: str, now: float) -> bool:
        return bool(self._connection.apply(self._connection.queries.pause_schedule, {"name": name, "now": now}))

    def resume(self, name: str) -> bool:
        return bool(self._connection.apply(self._connection.queries.resume_schedule, {"name": name}))

    def run(self, name: str, now: float) -> int | None:
        planned = self._planned(name)
        if planned is None or not planned.type:
            return None
        job = NewJob(planned.type, planned.payload, scheduled_at=now)
        connection = self._connection

        def insert(raw: Transaction) -> int | None:
            job_id = connection.inserter.insert(raw, job, now)
            raw.execute(connection.queries.note_fired, {"name": name, "last_at": now, "last_job": job_id})
            return job_id

        return connection.inserter.with_room(insert)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def _read(row: Sequence[Any]) -> Planned:
    """What is no time, such as infinity, is 0 or missing; a schedule that is paused stays so."""
    found = Planned(*row)
    paused_at = None if found.paused_at is None else known_time(found.paused_at) or 0.0
    return replace(
        found, next_at=known_time(found.next_at) or 0.0, last_at=known_time(found.last_at), paused_at=paused_at
    )
