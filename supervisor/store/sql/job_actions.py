"""Changing jobs by hand: retry, cancel, delete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from supervisor.domain.errors import Conflict, JobNotFound, StoreError
from supervisor.domain.job import Status
from supervisor.store.sql.connection import Connection, RowRefused, Transaction
from supervisor.store.sql.refused_rows import lock_jobs, one_by_one

_BATCH = 500  # rows in one transaction of a bulk action, so that other writers get their turn in between


class SqlJobActions:
    """Implements `store.base.JobActions`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries

    def retry(self, ids: Iterable[int], now: float) -> int:
        return self._each(self._queries.retry, ids=ids, now=now, then=self._queries.forget_second_chances)

    def rerun(self, job_id: int, now: float, *, payload: str | None, done: bool) -> bool:
        more = {"payload": payload, "done": done}
        return bool(
            self._each(self._queries.rerun, ids=[job_id], now=now, then=self._queries.forget_second_chances, more=more)
        )

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
        return self._each(self._queries.cancel_pending, self._queries.request_cancel, ids=ids, now=now)

    def delete(self, ids: Iterable[int]) -> int:
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
