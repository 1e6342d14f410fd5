"""Changing jobs: by hand, when their retention is over, and when a pool redrives what has failed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from supervisor.domain.errors import Conflict, JobNotFound, StoreError
from supervisor.domain.job import Status
from supervisor.store.queries import Queries
from supervisor.store.sql.backlog import JobSelector, selected
from supervisor.store.sql.connection import Concern, Connection, RowRefused, Transaction, lock_jobs, one_by_one
from supervisor.store.sql.schedules import AlertStore


class Cursor(NamedTuple):
    """A position among the failed jobs: when the last one read had failed, and its id."""

    failed_at: float
    job_id: int


_BATCH = 500  # rows in one transaction of a bulk action, so that other writers get their turn in between


class JobActions(Concern):
    """Changing jobs by hand."""

    def retry(self, ids: Iterable[int], now: float) -> int:
        """Set finished, unsuccessful jobs back to pending with their counters reset. Returns how many.

        Skipped: jobs in another state, and those whose unique key is taken by an unfinished job.
        """
        return self._each(self._queries.retry, ids=ids, now=now, then=self._queries.forget_second_chances)

    def rerun(self, job_id: int, now: float, *, payload: str | None, done: bool) -> bool:
        """Retry one job with another payload (JSON text; None: its own), and with `done` even if it has succeeded.

        Returns whether it was changed; see `retry`.
        """
        more = {"payload": payload, "done": done}
        return bool(
            self._each(self._queries.rerun, ids=[job_id], now=now, then=self._queries.forget_second_chances, more=more)
        )

    def cancel(self, job_id: int, now: float) -> Status:
        """Cancel a pending job, or ask a running one to stop. Returns its new status."""
        which = {"ids": json.dumps([job_id]), "now": now}
        with self._connection.write() as raw:
            lock_jobs(self._queries, raw, [job_id])
            if raw.execute(self._queries.cancel_pending, which).fetchall():
                return Status.CANCELLED
            if raw.execute(self._queries.request_cancel, which).fetchall():
                return Status.RUNNING
            row = raw.execute(self._queries.job_status, {"id": job_id}).fetchone()
        if row is None:
            raise JobNotFound(job_id)
        raise Conflict(f"job {job_id} is {row[0]}; only a pending or running job can be cancelled")

    def cancel_all(self, ids: Iterable[int], now: float) -> int:
        """Cancel those of these jobs that are pending, ask the running ones to stop. Returns how many."""
        return self._each(self._queries.cancel_pending, self._queries.request_cancel, ids=ids, now=now)

    def delete(self, ids: Iterable[int]) -> int:
        """Delete finished jobs with their errors and runs. Returns how many; unfinished ones are skipped."""
        return self._each(self._queries.delete_finished, ids=ids)

    def _each(
        self,
        *queries: str,
        ids: Iterable[int],
        now: float = 0.0,
        then: str = "",
        more: Mapping[str, object] = MappingProxyType({}),
    ) -> int:
        """Change each job by the first of the queries that does, then run `then` for those. Returns how many."""
        pending, changed, refused = list(ids), 0, list[tuple[int, str]]()

        def change(raw: Transaction, batch: Sequence[int]) -> int:
            lock_jobs(self._queries, raw, batch)
            which = {"ids": json.dumps(batch), "now": now, **more}
            found = [row[0] for query in queries for row in raw.execute(query, which).fetchall()]
            if then and found:
                raw.execute(then, {"ids": json.dumps(found)})
            return len(found)

        while pending:
            batch, pending = pending[:_BATCH], pending[_BATCH:]
            try:
                with self._connection.write() as raw:
                    changed += change(raw, batch)
            except RowRefused:
                some, others = one_by_one(self._connection, batch, lambda raw, job_id: change(raw, [job_id]))
                changed, refused = changed + some, refused + others
        for job_id, why in refused:
            raise StoreError(
                f"the database refuses to have job {job_id} changed: {why}"
                + (f"; and {len(refused) - 1} others" if len(refused) > 1 else "")
                + (f"; {changed} other jobs were changed" if changed else "")
            )
        return changed


class FinishedJobs(Concern):
    """Finished jobs, walked through a bounded number of rows at a time."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self.alerts = AlertStore(connection)

    def prune(self, after: int, limit: int, done_before: float, failed_before: float) -> tuple[int, int]:
        """Look at `limit` rows after an id. Returns (jobs deleted, id reached; 0 at the end of the table)."""
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
        """Look at `limit` jobs that failed after a cursor and not after `until` (Unix seconds), and set those that
        are wanted and were redriven fewer than `times` times back to pending. Returns (their ids, the new cursor).
        """
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
