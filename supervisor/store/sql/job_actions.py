"""Changing jobs by hand: retry, cancel, delete."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from supervisor.domain.errors import Conflict, JobNotFound, StoreError
from supervisor.domain.job import Status
from supervisor.store.base import Retried
from supervisor.store.sql.connection import Connection, RowRefused, Transaction
from supervisor.store.sql.refused_rows import lock_jobs, one_by_one, retry

_Change = Callable[[Transaction, Sequence[int]], int]

_BATCH = 500  # rows in one transaction of a bulk action, so that other writers get their turn in between


class SqlJobActions:
    """Implements `store.base.JobActions`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries

    def retry(self, ids: Iterable[int], now: float) -> Retried:
        return self._retry(self._queries.retry, ids, {"now": now})

    def rerun(self, job_id: int, now: float, *, payload: str | None, done: bool) -> Retried:
        return self._retry(self._queries.rerun, [job_id], {"now": now, "payload": payload, "done": done})

    def cancel(self, job_id: int, now: float) -> Status:
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
        return self._each(self._by(self._queries.cancel_pending, self._queries.request_cancel, now=now), ids)

    def delete(self, ids: Iterable[int]) -> int:
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
