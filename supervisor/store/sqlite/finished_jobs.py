"""Finished jobs: pruned when their retention is over, redriven if a pool says so."""

from __future__ import annotations

import sqlite3
from typing import Any

from supervisor.store.base import Cursor, JobSelector
from supervisor.store.sqlite.alerts import SqliteAlerts
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import RowRefused
from supervisor.store.sqlite.refused_rows import one_by_one
from supervisor.store.sqlite.rows import selected


class SqliteFinishedJobs:
    """Implements `store.base.FinishedJobs`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.alerts = SqliteAlerts(connection)

    def prune(self, after: int, limit: int, done_before: float, failed_before: float) -> tuple[int, int]:
        row = self._connection.row(QUERIES.prune_until, {"after": after, "limit": limit})
        if row is None or row[0] is None:
            return 0, 0
        bounds = {"after": after, "until": row[0], "done_before": done_before, "failed_before": failed_before}
        try:
            with self._connection.write() as raw:
                deleted = raw.execute(QUERIES.prune, bounds).rowcount
                _prune_others(raw, bounds)
        except RowRefused:  # rows of the application's own tables refer to some of these jobs, which are kept
            with self._connection.write() as raw:
                _prune_others(raw, bounds)
            jobs = [job for (job,) in self._connection.rows(QUERIES.prunable, bounds)]
            delete = QUERIES.delete_finished
            deleted, _ = one_by_one(self._connection, jobs, lambda raw, job: raw.execute(delete, {"id": job}).rowcount)
        return deleted, row[0]

    def redrive(
        self, wanted: JobSelector, times: int, after: Cursor, until: float, limit: int, now: float
    ) -> tuple[list[int], Cursor]:
        which = {"failed_at": after.failed_at, "id": after.job_id, "until": until, "times": times, "limit": limit}
        rows = self._connection.rows(QUERIES.failed_after, which | selected(wanted))
        if not rows:
            return [], after
        redriven: list[int] = []

        def retry(raw: sqlite3.Connection, job_id: int) -> int:
            changed = raw.execute(QUERIES.retry, {"id": job_id, "now": now}).rowcount
            if changed:
                raw.execute(QUERIES.note_second_chance, {"id": job_id})
            return changed

        # They are few, and a constraint of the application's may refuse one of them.
        for job_id in (row[1] for row in rows if row[2]):
            if one_by_one(self._connection, [job_id], retry)[0]:
                redriven.append(job_id)
        return redriven, Cursor(rows[-1][0], rows[-1][1])


def _prune_others(raw: sqlite3.Connection, bounds: dict[str, Any]) -> None:
    raw.execute(QUERIES.prune_errors, {"before": bounds["failed_before"]})
    for query in (QUERIES.prune_runs, QUERIES.prune_batch_limits, QUERIES.prune_second_chances):
        raw.execute(query, bounds)
