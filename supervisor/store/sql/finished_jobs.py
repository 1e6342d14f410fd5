"""Finished jobs: pruned when their retention is over, redriven if a pool says so."""

from __future__ import annotations

import json
from typing import Any

from supervisor.store.base import Cursor, JobSelector, Redriven
from supervisor.store.queries import Queries
from supervisor.store.sql.alerts import SqlAlerts
from supervisor.store.sql.connection import Connection, RowRefused, Transaction
from supervisor.store.sql.refused_rows import one_by_one, retry
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

    def redrive(self, wanted: JobSelector, times: int, after: Cursor, until: float, limit: int, now: float) -> Redriven:
        which = {"failed_at": after.failed_at, "id": after.job_id, "until": until, "times": times, "limit": limit}
        rows = self._connection.rows(self._queries.failed_after, which | selected(wanted))
        if not rows:
            return Redriven([], after)
        before = {row[1]: Cursor(row[0], row[1] - 1) for row in rows if row[2]}
        duplicates: dict[int, int] = dict(
            self._connection.rows(self._queries.duplicates, {"ids": json.dumps(list(before))})
        )
        redriven: list[int] = []

        def redrive(raw: Transaction, jobs: list[int]) -> int:
            some = self._redrive(raw, jobs, now, duplicates)
            redriven.extend(some)
            return len(some)

        found = [job for job in before if job not in duplicates]
        try:
            if found:
                with self._connection.write() as raw:
                    redrive(raw, found)
        except RowRefused:  # a constraint of the application's refuses one of them
            redriven.clear()
            _, refused = one_by_one(self._connection, found, lambda raw, job: redrive(raw, [job]))
            redriven = [job for job in redriven if job not in dict(refused)]
        held = next((before[job] for job in before if job in duplicates), None)
        return Redriven(redriven, Cursor(rows[-1][0], rows[-1][1]), held, more=len(rows) == limit)

    def _redrive(self, raw: Transaction, jobs: list[int], now: float, duplicates: dict[int, int]) -> list[int]:
        redriven = retry(self._queries, raw, self._queries.retry, jobs, {"now": now}, duplicates)
        if redriven:
            raw.execute(self._queries.note_second_chance, {"ids": json.dumps(redriven)})
        return redriven


def _prune_others(queries: Queries, raw: Transaction, bounds: dict[str, Any]) -> None:
    raw.execute(queries.prune_errors, {"before": bounds["failed_before"]})
    for query in (queries.prune_runs, queries.prune_batch_limits, queries.prune_second_chances):
        raw.execute(query, bounds)
