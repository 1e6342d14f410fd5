"""Enqueueing jobs, durably, and looking at them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TypeVar

from supervisor.domain.errors import Conflict
from supervisor.domain.job import NewJob, NewJobs
from supervisor.store.base import Operations
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.inserting import insert, insert_or_find
from supervisor.store.postgres.operations import operations
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import RowRefused, Transaction
from supervisor.store.sql.producer import SqlProducer
from supervisor.store.sql.requests import Requests

Answer = TypeVar("Answer")


class PostgresProducer(SqlProducer):
    """Implements `store.base.Producer`. Its connection commits durably."""

    _connection: Connection

    def enqueue(self, jobs: NewJobs) -> list[int]:
        with self._connection.write() as raw:
            return insert(raw, jobs, None)

    def put(self, job: NewJob) -> tuple[int, bool]:
        with self._connection.write() as raw:
            return _requests(raw).put(job, lambda job: insert_or_find(raw, job, None))

    def put_each(self, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
        try:
            with self._connection.write() as raw:
                requests = _requests(raw)
                return [requests.put_or_full(job, lambda job: insert_or_find(raw, job, None)) for job in jobs]
        except (RowRefused, Conflict) as error:
            return [error] if len(jobs) == 1 else [self._put_alone(job) for job in jobs]

    def make_durable(self) -> None:
        """Every commit is."""

    @cached_property
    def operations(self) -> Operations:
        return operations(self._connection)


def _requests(raw: Transaction) -> Requests:
    return Requests(QUERIES, raw, alone=QUERIES.one_request_at_a_time)
