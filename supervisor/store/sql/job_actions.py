"""Changing jobs: by hand, when their retention is over, and when a pool redrives what has failed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from supervisor.domain.errors import Conflict, JobNotFound, StoreError
from supervisor.domain.job import Status
from supervisor.store.sql.backlog import JobSelector, selected
from supervisor.store.sql.connection import Concern, Connection, Transaction, change_each, lock_jobs, retry
from supervisor.store.sql.schedules import AlertStore


class Cursor(NamedTuple):
    """A position among the failed jobs: when the last one read had failed, and its id."""

    failed_at: float
    job_id: int


class Redriven(NamedTuple):
    """Failed jobs that are pending again, the cursor reached, the position before the first job whose unique key an
    unfinished one has, and whether there may be more jobs after the cursor.
    """

    jobs: Sequence[int]
    reached: Cursor
    held: Cursor | None = None
    more: bool = False


class Retried(NamedTuple):
    """How many jobs are pending again, and those that are not because an unfinished one has their unique key: its id
    by theirs.
    """

    changed: int
    duplicates: Mapping[int, int]


_Change = Callable[[Transaction, Sequence[int]], int]

_BATCH = 500  # rows in one transaction of a bulk action, so that other writers get their turn in between


class JobActions(Concern):
    """Changing jobs by hand."""

    def retry(self, ids: Iterable[int], now: float) -> Retried:
        """Set finished, unsuccessful jobs back to pending with their counters reset.

        Skipped: jobs in another state, and those whose unique key an unfinished job has.
        """
        return self._retry(self._queries.retry, ids, {"now": now})

    def rerun(self, job_id: int, now: float, *, payload: str | None, done: bool) -> Retried:
        """Retry one job with another payload (JSON text; None: its own), and with `done` even if it has succeeded."""
        return self._retry(self._queries.rerun, [job_id], {"now": now, "payload": payload, "done": done})

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
        raise Conflict(f"job {job_id} is {row[0]}; only an unfinished job can be cancelled")

    def cancel_all(self, ids: Iterable[int], now: float) -> int:
        """Cancel those of these jobs that are pending, ask the running ones to stop. Returns how many."""
        return self._each(self._by(self._queries.cancel_pending, self._queries.request_cancel, now=now), ids)

    def run_now(self, job_id: int, now: float) -> bool:
        """Let a job that waits run now, whatever its gates and its time. False if it does not wait any more."""
        with self._connection.write() as raw:
            lock_jobs(self._queries, raw, [job_id])
            return raw.execute(self._queries.run_now, {"id": job_id, "now": now}).rowcount > 0

    def delete(self, ids: Iterable[int]) -> int:
        """Delete finished jobs with their errors and runs. Returns how many; unfinished ones are skipped."""
        return self._each(self._by(self._queries.delete_finished), ids)

    def _by(self, *queries: str, now: float = 0.0) -> _Change:
        """Changes each job by the first of the queries that does."""

        def change(raw: Transaction, batch: Sequence[int]) -> int:
            lock_jobs(self._queries, raw, batch)
            which = {"ids": json.dumps(batch), "now": now}
            return sum(len(raw.execute(query, which).fetchall()) for query in queries)

        return change

    def _retry(self, query: str, ids: Iterable[int], values: Mapping[str, object]) -> Retried:
        duplicates: dict[int, int] = {}

        def change(raw: Transaction, batch: Sequence[int]) -> int:
            changed = retry(self._queries, raw, query, batch, values, duplicates)
            if changed:
                raw.execute(self._queries.forget_second_chances, {"ids": json.dumps(changed)})
            return len(changed)

        return Retried(self._each(change, ids), duplicates)

    def _each(self, change: _Change, ids: Iterable[int]) -> int:
        """Change the jobs, some hundred in a transaction. Returns how many were changed."""
        pending, changed, refused = list(ids), 0, list[tuple[int, str]]()
        while pending:
            batch, pending = pending[:_BATCH], pending[_BATCH:]
            some, others = change_each(self._connection, batch, change)
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
            self._connection.apply(self._queries.prune_batches, {"before": max(done_before, failed_before)})
            return 0, 0
        bounds = {"after": after, "until": row[0], "done_before": done_before, "failed_before": failed_before}
        jobs = [job for (job,) in self._connection.rows(self._queries.prunable, bounds)]

        def prune(raw: Transaction, jobs: Sequence[int]) -> int:
            deleted = raw.execute(self._queries.prune, bounds | {"ids": json.dumps(jobs)}).rowcount
            raw.execute(self._queries.prune_errors, {"before": failed_before})
            known = self._queries
            for query in (known.prune_runs, known.prune_batch_limits, known.prune_second_chances):
                raw.execute(query, bounds)
            return deleted

        # Jobs to which rows of the application's own tables refer are kept.
        return change_each(self._connection, jobs, prune)[0], row[0]

    def redrive(self, wanted: JobSelector, times: int, after: Cursor, until: float, limit: int, now: float) -> Redriven:
        """Look at `limit` jobs that failed after a cursor and not after `until` (Unix seconds), and set those that
        are wanted and were redriven fewer than `times` times back to pending, unless an unfinished job has their unique
        key.
        """
        which = {"failed_at": after.failed_at, "id": after.job_id, "until": until, "times": times, "limit": limit}
        rows = self._connection.rows(self._queries.failed_after, which | selected(wanted))
        if not rows:
            return Redriven([], after)
        before = {row[1]: Cursor(row[0], row[1] - 1) for row in rows if row[2]}
        duplicates: dict[int, int] = dict(
            self._connection.rows(self._queries.duplicates, {"ids": json.dumps(list(before))})
        )
        redriven: list[int] = []
        found = [job for job in before if job not in duplicates]

        def redrive(raw: Transaction, jobs: Sequence[int]) -> int:
            some = retry(self._queries, raw, self._queries.retry, jobs, {"now": now}, duplicates)
            if some:
                raw.execute(self._queries.note_second_chance, {"ids": json.dumps(some)})
            redriven.extend(some)
            return len(some)

        if found:
            refused = dict(change_each(self._connection, found, redrive)[1])
            redriven = [job for job in dict.fromkeys(redriven) if job not in refused]
        held = next((before[job] for job in before if job in duplicates), None)
        return Redriven(redriven, Cursor(rows[-1][0], rows[-1][1]), held, more=len(rows) == limit)
