"""The timetable's role: each time of a schedule fires once, whoever is killed and however many look."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from supervisor.domain.job import NewJob
from supervisor.store.base import Planned
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.inserting import insert_job, with_room


class SqliteTimetable:
    """Implements `store.base.Timetable`. Its connection commits with synchronous=FULL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def plan(self, name: str, timing: str, next_at: float) -> Planned:
        """The schedule's row; a new one, or one with another timing, is planned for `next_at` (Unix seconds)."""
        row = self._connection.row(QUERIES.schedule, {"name": name})
        if row is None or row[1] != timing:
            self._connection.apply(QUERIES.plan, {"name": name, "timing": timing, "next_at": next_at})
            row = self._connection.row(QUERIES.schedule, {"name": name})
        return Planned(*row) if row else Planned(name, timing, next_at)

    def fire(self, planned: Planned, jobs: Sequence[NewJob], next_at: float, now: float) -> list[int] | None:
        """Move the schedule on and insert the jobs, both or neither. None: somebody else has moved it."""
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
        self._connection.close()
