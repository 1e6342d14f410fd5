"""Schedules: each time fires once, no matter who is killed and how many supervisors have the schedule."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

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

    def plan(self, name: str, timing: str, next_at: float) -> Planned:
        row = self._connection.row(QUERIES.schedule, {"name": name})
        if row is None or row[1] != timing:
            self._connection.apply(QUERIES.plan, {"name": name, "timing": timing, "next_at": next_at})
            row = self._connection.row(QUERIES.schedule, {"name": name})
        return Planned(*row) if row else Planned(name, timing, next_at)

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

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
