"""Schedules: each time fires once, no matter who is killed and how many supervisors have the schedule."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import asdict

from supervisor.domain.job import NewJob
from supervisor.store.base import Planned
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.inserting import insert_job, with_room


class SqliteSchedules:
    """Implements `store.base.Schedules`. Its connection commits with synchronous=FULL; it is opened at first use."""

    def __init__(self, connect: Callable[[], Connection]) -> None:
        self._connect = connect
        self._opened: Connection | None = None

    @property
    def _connection(self) -> Connection:
        if self._opened is None:
            self._opened = self._connect()
        return self._opened

    def planned(self) -> list[Planned]:
        return [Planned(*row) for row in self._connection.rows(QUERIES.schedules)]

    def plan(self, name: str, timing: str, next_at: float, *, type: str = "", payload: str = "{}") -> Planned:
        wanted = Planned(name, timing, next_at, type=type, payload=payload)
        found = self._planned(name)
        if found is None or (found.timing, found.type, found.payload) != (timing, type, payload):
            self._connection.apply(QUERIES.plan, asdict(wanted))
            found = self._planned(name)
        return found or wanted

    def _planned(self, name: str) -> Planned | None:
        row = self._connection.row(QUERIES.schedule, {"name": name})
        return None if row is None else Planned(*row)

    def fire(self, planned: Planned, jobs: Sequence[NewJob], next_at: float, now: float) -> list[int] | None:
        which = {"name": planned.name, "timing": planned.timing, "planned": planned.next_at, "next_at": next_at}

        def fire(raw: sqlite3.Connection) -> list[int] | None:
            if not raw.execute(QUERIES.move_on, which).rowcount:
                return None
            ids, cursor = [], raw.cursor()
            for job in jobs:
                insert_job(cursor, job, now)
                ids.append(cursor.lastrowid or 0)
                fired = {"name": planned.name, "last_at": job.scheduled_at, "last_job": ids[-1]}
                raw.execute(QUERIES.note_fired, fired)
            return ids

        return with_room(self._connection, fire)

    def pause(self, name: str, now: float) -> bool:
        return bool(self._connection.apply(QUERIES.pause_schedule, {"name": name, "now": now}))

    def resume(self, name: str) -> bool:
        return bool(self._connection.apply(QUERIES.resume_schedule, {"name": name}))

    def run(self, name: str, now: float) -> int | None:
        planned = self._planned(name)
        if planned is None or not planned.type:
            return None
        job = NewJob(planned.type, planned.payload, scheduled_at=now)

        def insert(raw: sqlite3.Connection) -> int:
            cursor = raw.cursor()
            insert_job(cursor, job, now)
            job_id = cursor.lastrowid or 0
            raw.execute(QUERIES.note_fired, {"name": name, "last_at": now, "last_job": job_id})
            return job_id

        return with_room(self._connection, insert)

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
