"""Enqueueing jobs, durably, and looking at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import psycopg

from supervisor.domain.errors import Conflict, InvalidJob
from supervisor.domain.job import Job, NewJob, NewJobs
from supervisor.store.base import Operations
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.inserting import insert, insert_or_find
from supervisor.store.postgres.operations import operations
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import RowRefused
from supervisor.store.sql.producer import SqlProducer
from supervisor.store.sql.rows import job_of

Answer = TypeVar("Answer")

_EXPECTED = "a psycopg.Connection, or what SQLAlchemy or Django have for one"


class PostgresProducer(SqlProducer):
    """Implements `store.base.Producer`. Its connection commits durably."""

    _connection: Connection

    def enqueue(self, jobs: NewJobs) -> list[int]:
        with self._connection.write() as raw:
            return insert(raw, jobs, None)

    def put(self, job: NewJob) -> tuple[int, bool]:
        with self._connection.write() as raw:
            return insert_or_find(raw, job, None)

    def put_each(self, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
        try:
            with self._connection.write() as raw:
                return [insert_or_find(raw, job, None) for job in jobs]
        except (RowRefused, Conflict) as error:
            return [error] if len(jobs) == 1 else [self._put_alone(job) for job in jobs]

    @cached_property
    def operations(self) -> Operations:
        return operations(self._connection)


class PostgresTransactionalInsert:
    """Implements `store.base.TransactionalInsert` for psycopg's connections, and what frameworks have for one."""

    def __init__(self, address: Address, migrate: Callable[[], object]) -> None:
        self._address = address
        self._migrate = migrate

    def prepare(self, connection: Any, *, create: bool) -> bool:
        return schema.prepare(_driver(connection), self._address.shown, create=create, migrate=self._migrate)

    def insert(self, connection: Any, jobs: NewJobs) -> list[int]:
        return insert(_in_callers(connection), jobs, None)

    def put(self, connection: Any, job: NewJob) -> tuple[int, bool]:
        return insert_or_find(_in_callers(connection), job, None)

    def job(self, connection: Any, job_id: int) -> Job | None:
        row = _in_callers(connection).execute(QUERIES.job, {"id": job_id}).fetchone()
        return None if row is None else job_of(row)

    def is_asynchronous(self, connection: Any) -> bool:
        return hasattr(connection, "run_sync") or isinstance(connection, psycopg.AsyncConnection)

    async def awaited(self, connection: Any, call: Callable[[object], Answer]) -> Answer:
        """With SQLAlchemy's asynchronous session or connection."""
        if hasattr(connection, "run_sync"):
            answer: Answer = await connection.run_sync(call)
            return answer
        raise InvalidJob("connection", "asynchronous connections to PostgreSQL are not supported yet; use Queue")


class _Plain:
    """A caller's connection with rows as tuples, whatever the caller has chosen."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw

    def execute(self, sql: str, parameters: Any = (), /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._raw.cursor(row_factory=psycopg.rows.tuple_row).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> psycopg.Cursor[tuple[Any, ...]]:
        cursor = self._raw.cursor(row_factory=psycopg.rows.tuple_row)
        cursor.executemany(sql, parameters)
        return cursor


def _in_callers(connection: Any) -> Any:
    return _Plain(_driver(connection))


def _driver(connection: Any) -> psycopg.Connection[Any]:
    """The driver's connection behind the caller's object. Raises InvalidJob if there is none."""
    found = connection
    kinds = {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}
    if kinds & {"sqlalchemy.Session", "sqlalchemy.scoped_session"}:
        found = connection.connection().connection.driver_connection
    elif "sqlalchemy.Connection" in kinds:
        if not connection.in_transaction():
            connection.exec_driver_sql("SELECT 1")  # its transaction begins, as with any statement
        found = connection.connection.driver_connection
    elif kinds & {"django.ConnectionProxy", "django.BaseDatabaseWrapper"} and connection.vendor == "postgresql":
        connection.ensure_connection()
        found = connection.connection
    if not isinstance(found, psycopg.Connection):
        kind = f"{type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"
        raise InvalidJob("connection", f"a {kind} is none that can be used here; give {_EXPECTED}")
    return found
