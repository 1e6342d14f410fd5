"""Finished jobs: pruned when their retention is over, redriven if a pool says so."""

from __future__ import annotations

import json
from typing import Any

from supervisor.store.base import Cursor, JobSelector
from supervisor.store.queries import Queries
from supervisor.store.sql.alerts import SqlAlerts
from supervisor.store.sql.connection import Connection, RowRefused, Transaction
from supervisor.store.sql.refused_rows import lock_jobs, one_by_one
from supervisor.store.sql.rows import selected


class SqlFinishedJobs:
    """Implements `store.base.FinishedJobs`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries
        self.alerts = SqlAlerts(connection)

    def prune(self, after: int, limit: int, done_before: float, failed_before: float) -> tuple[int, int]:
        row = self._connection.row(self._queries.prune_until, {"after": after, "limit": limit})
        if row is None or row[0] is None:
            return 0, 0
        bounds = {"after": after, "until": row[0], "done_before": done_before, "failed_before": failed_before}
        try:
            with self._connection.write() as raw:
                deleted = raw.execute(self._queries.prune, bounds).rowcount
                _prune_others(self._queries, raw, bounds)
        except RowRefused:  # rows of the application's own tables refer to some of these jobs, which are kept
            with self._connection.write() as raw:
                _prune_others(self._queries, raw, bounds)
            jobs = [job for (job,) in self._connection.rows(self._queries.prunable, bounds)]
            delete = self._queries.delete_finished
            deleted, _ = one_by_one(
                self._connection, jobs, lambda raw, job: len(raw.execute(delete, {"ids": json.dumps([job])}).fetchall())
            )
        return deleted, row[0]

    def redrive(
        self, wanted: JobSelector, times: int, after: Cursor, until: float, limit: int, now: float
    ) -> tuple[list[int], Cursor]:
        which = {"failed_at": after.failed_at, "id": after.job_id, "until": until, "times": times, "limit": limit}
        rows = self._connection.rows(self._queries.failed_after, which | selected(wanted))
        if not rows:
            return [], after
        found = [row[1] for row in rows if row[2]]
        redriven: list[int] = []
        try:
            if found:
                with self._connection.write() as raw:
                    redriven = self._redrive(raw, found, now)
        except RowRefused:  # a constraint of the application's refuses one of them
            redriven = [
                job
                for job in found
                if one_by_one(self._connection, [job], lambda raw, job: len(self._redrive(raw, [job], now)))[0]
            ]
        return redriven, Cursor(rows[-1][0], rows[-1][1])

    def _redrive(self, raw: Transaction, jobs: list[int], now: float) -> list[int]:
        lock_jobs(self._queries, raw, jobs)
        changed = raw.execute(self._queries.retry, {"ids": json.dumps(jobs), "now": now}).fetchall()
        redriven = [job for (job,) in changed]
        if redriven:
            raw.execute(self._queries.note_second_chance, {"ids": json.dumps(redriven)})
        return redriven


def _prune_others(queries: Queries, raw: Transaction, bounds: dict[str, Any]) -> None:
    raw.execute(queries.prune_errors, {"before": bounds["failed_before"]})
    for query in (queries.prune_runs, queries.prune_batch_limits, queries.prune_second_chances):
        raw.execute(query, bounds)
