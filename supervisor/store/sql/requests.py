"""Whether a job that somebody waits for is inserted: the look and the insert are one decision of one transaction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.domain.errors import QueueFull
from supervisor.domain.job import NewJob
from supervisor.store.queries import Queries
from supervisor.store.sql.connection import Transaction

Put = tuple[int, bool]
"""The id of a job, and whether it is new."""


class Requests:
    """The jobs with `once` or `max_waiting` of one transaction. `now` is Unix seconds, where the clock is ours.

    `alone` is the statement after which no other transaction inserts such jobs, if writing alone does not ensure it.
    A job waits for those that have at least its priority. They are counted once for each type, priority and limit, and
    then by what is inserted.
    """

    def __init__(self, queries: Queries, raw: Transaction, now: float | None = None, alone: str = "") -> None:
        self._queries = queries
        self._raw = raw
        self._now = now
        self._alone = alone
        self._waiting: dict[tuple[str, int, int], int] = {}

    def put(self, job: NewJob, insert_or_find: Callable[[NewJob], Put]) -> Put:
        """Insert the job with the given function, or find one with its key. Raises QueueFull."""
        if not job.once and job.max_waiting is None:
            return insert_or_find(job)
        self.begin()
        if (found := self._earlier(job)) is not None:
            return found, False
        if job.max_waiting is not None and self._ahead(job, job.max_waiting) >= job.max_waiting:
            raise QueueFull(job.type, job.max_waiting)
        job_id, new = insert_or_find(job)
        if new and job.max_waiting is not None:
            for type, priority, limit in self._waiting:
                if type == job.type and priority <= job.priority:
                    self._waiting[type, priority, limit] += 1
        return job_id, new

    def begin(self) -> None:
        """Before anything else that such a transaction may have to wait for: others wait for its end."""
        if self._alone:
            self._raw.execute(self._alone)
            self._alone = ""

    def put_or_full(self, job: NewJob, insert_or_find: Callable[[NewJob], Put]) -> Put | Exception:
        """The same for one of several jobs: that one finds no room concerns no other."""
        try:
            return self.put(job, insert_or_find)
        except QueueFull as error:
            return error

    def _earlier(self, job: NewJob) -> int | None:
        if job.unique_key is None:
            return None
        query = self._queries.find_once if job.once else self._queries.find_unique
        row = self._raw.execute(query, {"type": job.type, "unique_key": job.unique_key}).fetchone()
        return None if row is None else int(row[0])

    def _ahead(self, job: NewJob, limit: int) -> int:
        """How many due jobs are claimed no later than this one, counted up to the limit."""
        key = job.type, job.priority, limit
        if key not in self._waiting:
            which: dict[str, Any] = {"type": job.type, "priority": job.priority, "now": self._now, "limit": limit}
            self._waiting[key] = int(self._raw.execute(self._queries.count_waiting, which).fetchone()[0])
        return self._waiting[key]
