"""Enqueueing jobs, durably, and looking at them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

from supervisor.domain.errors import Conflict
from supervisor.domain.job import NewJob, NewJobs
from supervisor.store.base import Operations
from supervisor.store.postgres.changes import RENEWAL, SLEEP
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.inserting import in_order_of_keys, in_places, insert, insert_or_find
from supervisor.store.postgres.operations import operations
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import RowRefused, Transaction
from supervisor.store.sql.producer import SqlProducer
from supervisor.store.sql.requests import Requests

Answer = TypeVar("Answer")


class PostgresProducer(SqlProducer):
    """Implements `store.base.Producer`. Its connection commits durably."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._watched_until = 0.0  # monotonic

    def enqueue(self, jobs: NewJobs) -> list[int]:
        with self._connection.write() as raw:
            return insert(raw, jobs, None)

    def put(self, job: NewJob) -> tuple[int, bool]:
        with self._connection.write() as raw:
            answer = _requests(raw).put(job, lambda job: insert_or_find(raw, job, None))
            self._announce(raw, [job])
            return answer

    def put_each(self, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
        try:
            places = in_order_of_keys(jobs)
            with self._connection.write() as raw:
                requests = _requests(raw)
                if any(job.once or job.max_waiting is not None for job in jobs):
                    requests.begin()
                answers = [
                    requests.put_or_full(jobs[place], lambda job: insert_or_find(raw, job, None)) for place in places
                ]
                self._announce(raw, jobs)
                return in_places(places, answers)
        except (RowRefused, Conflict) as error:
            return [error] if len(jobs) == 1 else [self._put_alone(job) for job in jobs]

    def _announce(self, raw: Transaction, jobs: Sequence[NewJob]) -> None:
        """Before the commit, after which a job may be done at once: whoever waits for it has not looked yet. Their feed
        of changes goes on with it. A sequence is set at once, and no rollback undoes it.
        """
        now = time.monotonic()
        if now + RENEWAL >= self._watched_until and any(job.awaited for job in jobs):
            raw.execute(QUERIES.watch, {"seconds": SLEEP})
            self._watched_until = now + SLEEP

    def make_durable(self) -> None:
        """Every commit is."""

    @cached_property
    def operations(self) -> Operations:
        return operations(self._connection)


def _requests(raw: Transaction) -> Requests:
    return Requests(QUERIES, raw, alone=QUERIES.one_request_at_a_time)
