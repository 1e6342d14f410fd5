"""Batches: jobs after which one more is enqueued, once. Triggers and functions of the schema do that; here, batches are
opened, closed, looked at and pruned.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

from supervisor.domain.errors import BatchNotFound
from supervisor.domain.job import Status
from supervisor.domain.values import LAST_ID
from supervisor.store.sql.connection import Concern, Queries, Row
from supervisor.store.sql.jobs import status_of

MOST_BATCHES = 50  # batches that are listed


class BatchView(NamedTuple):
    """A batch as it is now. `on_done` is the type of the job that is enqueued when it has ended, and `callback` the id
    of that job, once it is. `counts` has the number of its jobs in each state; those that were deleted are missing.

    It is `open` until its program has closed it, `closed` until its last job has ended, then `ended`. Times are Unix
    seconds.
    """

    id: int
    state: str
    on_done: str | None
    callback: int | None
    created_at: float
    ended_at: float | None
    counts: dict[str, int]

    @property
    def done(self) -> int:
        return self.counts[Status.DONE]

    @property
    def waiting(self) -> int:
        """How many have not ended."""
        return sum(self.counts[status] for status in Status if not status.finished)

    @property
    def failed(self) -> int:
        """How many have ended without success, for whatever reason."""
        return sum(self.counts.values()) - self.done - self.waiting


def open_batch(queries: Queries, raw: Any, type_: str | None, payload: str) -> int:
    """Inside the caller's transaction. Returns the id, which nobody else has had."""
    number = time.time_ns() // 1000
    while not raw.execute(queries.open_batch, {"id": number, "type": type_, "payload": payload}).fetchall():
        number += 1
    return number


def close_batch(queries: Queries, raw: Any, batch: int) -> None:
    """Inside the caller's transaction. Raises BatchNotFound."""
    if not raw.execute(queries.close_batch, {"id": batch}).fetchall():
        raise BatchNotFound(batch)


class Batches(Concern):
    def open(self, type_: str | None, payload: str) -> int:
        with self._connection.write() as raw:
            return open_batch(self._queries, raw, type_, payload)

    def close(self, batch: int) -> None:
        """Its program adds no more jobs: it ends with the last one that is there, or at once. Raises BatchNotFound."""
        with self._connection.write() as raw:
            close_batch(self._queries, raw, batch)

    def get(self, batch: int) -> BatchView:
        """Raises BatchNotFound."""
        row = self._connection.row(self._queries.batch, {"id": batch})
        if row is None:
            raise BatchNotFound(batch)
        return self._view(row)

    def latest(self, before: int = LAST_ID, *, ended: bool = False) -> list[BatchView]:
        """MOST_BATCHES at most, of those that have not ended, or of all."""
        which = {"before": before, "ended": int(ended), "limit": MOST_BATCHES}
        return [self._view(row) for row in self._connection.rows(self._queries.batches, which)]

    def _view(self, row: Row) -> BatchView:
        number, on_done, closed, callback, created_at, ended_at = row
        state = "open" if not closed else "closed" if ended_at is None else "ended"
        counts = {status.value: 0 for status in Status}
        for status, count in self._connection.rows(self._queries.batch_counts, {"id": number}):
            counts[status_of(status).value] += count
        return BatchView(number, state, on_done, callback, created_at, ended_at, counts)
