"""Enqueueing jobs and looking at them: durably, on a connection of ours, or in a transaction of the caller's."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeVar

import psycopg

from supervisor.domain.errors import InvalidJob, holdable
from supervisor.domain.job import NewJob, NewJobs
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.changes import RENEWAL, SLEEP
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.inserting import insert, insert_or_find
from supervisor.store.postgres.maintenance import operations
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Transaction
from supervisor.store.sql.inserting import Put
from supervisor.store.sql.producer import Producer, TransactionalInsert, begin, kinds_of
from supervisor.store.sql.stores import Operations

Answer = TypeVar("Answer")

_PSYCOPG, _ASYNCPG = {"psycopg.AsyncConnection"}, {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")

Statement = Coroutine[Any, Any, Any]
Await = Callable[[Statement], Any]


class PostgresProducer(Producer):
    """Its connection commits durably."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._watched_until = 0.0  # monotonic

    def _insert(self, raw: Transaction, jobs: NewJobs) -> list[int]:
        return insert(raw, jobs, None)

    def _put(self, raw: Transaction, job: NewJob) -> Put:
        return insert_or_find(raw, job, None)

    def _wake(self, raw: Transaction, jobs: Sequence[NewJob]) -> None:
        """Their feed of changes goes on with it. A sequence is set at once, and no rollback undoes it."""
        now = time.monotonic()
        if now + RENEWAL >= self._watched_until and any(job.awaited for job in jobs):
            raw.execute(QUERIES.watch, {"seconds": SLEEP})
            self._watched_until = now + SLEEP

    @cached_property
    def operations(self) -> Operations:
        return operations(self._connection)


class PostgresTransactionalInsert(TransactionalInsert):
    vendor = "postgresql"
    driver = psycopg.Connection
    queries = QUERIES
    awaited_kinds = frozenset(_PSYCOPG | _ASYNCPG)
    database = "PostgreSQL"
    takes = "a psycopg.Connection, SQLAlchemy's Session or Connection, Django's connection"
    takes_awaited = "a psycopg.AsyncConnection, asyncpg's connection, or SQLAlchemy's AsyncSession or AsyncConnection"

    def __init__(self, address: Address, migrate: Callable[[], object]) -> None:
        self._address = address
        self._migrate = migrate

    def on_driver(self, connection: Any, work: Callable[[Any], Answer]) -> Answer:
        if isinstance(connection, _Awaited):
            return work(connection)
        return super().on_driver(connection, lambda raw: work(_Plain(raw) if isinstance(raw, self.driver) else raw))

    def _prepare(self, raw: Any, create: bool) -> bool:
        return schema.prepare(raw, self._address.shown, create=create, migrate=self._migrate)

    def _insert(self, raw: Any, jobs: NewJobs) -> list[int]:
        return insert(raw, jobs, None)

    def _put(self, raw: Any, job: NewJob) -> Put:
        return insert_or_find(raw, job, None)

    def _inside_run_sync(self, connection: Any, found: Any, work: Callable[[Any], Answer]) -> Answer:
        if kinds_of(found) & _ASYNCPG and not found.is_in_transaction():
            begin(connection)
        return work(_Awaited(found, sys.modules["sqlalchemy.util"].await_only))

    async def _in_thread(self, connection: Any, call: Callable[[Any], Answer]) -> Answer:
        """Its statements are run here, in the task of the caller: so the driver is told of a cancellation as in any
        statement of the caller's, and none is sent after it.
        """
        loop = asyncio.get_running_loop()
        asked: asyncio.Queue[tuple[Statement, Future[Any]] | None] = asyncio.Queue()
        ended: Future[Answer] = Future()

        def run(statement: Statement) -> Any:
            answer: Future[Any] = Future()
            try:
                loop.call_soon_threadsafe(asked.put_nowait, (statement, answer))
            except BaseException:  # the loop is closed
                statement.close()
                raise
            return answer.result()

        def work() -> None:
            try:
                ended.set_result(call(_Awaited(connection, run)))
            except BaseException as raised:
                ended.set_exception(holdable(raised))
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(asked.put_nowait, None)

        threading.Thread(target=work, name="supervisor_caller", daemon=True).start()
        await _serve(asked)
        return ended.result()


async def _serve(asked: asyncio.Queue[tuple[Statement, Future[Any]] | None]) -> None:
    """Run the statements that a thread asks for, until it ends. Once the task is cancelled, they are refused."""
    cancelled: BaseException | None = None
    while True:
        try:
            one = await asked.get()
        except BaseException as error:
            cancelled = error
            continue
        if one is None:
            break
        statement, answer = one
        if cancelled is not None:
            statement.close()
            answer.set_exception(cancelled)
            continue
        try:
            answer.set_result(await statement)
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, Exception):
                cancelled = error
    if cancelled is not None:
        raise cancelled


class _Plain:
    """A caller's connection with rows as tuples, whatever the caller has chosen."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw

    def execute(self, sql: str, parameters: Any = None, /) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._raw.cursor(row_factory=psycopg.rows.tuple_row).execute(sql, parameters)


class _Fetched(NamedTuple):
    """Implements a part of `store.sql.connection.Result`."""

    rows: list[tuple[Any, ...]]

    def fetchone(self) -> tuple[Any, ...] | None:
        return self.rows[0] if self.rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self.rows


class _Awaited:
    """A connection of an asynchronous driver. `run` waits for a coroutine."""

    def __init__(self, connection: Any, run: Await) -> None:
        self._connection, self._run = connection, run
        self._is_psycopg = bool(kinds_of(connection) & _PSYCOPG)
        if not self._is_psycopg and not connection.is_in_transaction():
            raise InvalidJob("connection", "it has begun no transaction; use `async with connection.transaction():`")

    def execute(self, sql: str, parameters: Mapping[str, Any] | None = None, /) -> _Fetched:
        statement = self._psycopg if self._is_psycopg else self._asyncpg
        return _Fetched(self._run(statement(sql, parameters)))

    async def _psycopg(self, sql: str, parameters: Mapping[str, Any] | None) -> list[tuple[Any, ...]]:
        async with self._connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(sql, parameters)
            return [] if cursor.description is None else await cursor.fetchall()

    async def _asyncpg(self, sql: str, parameters: Mapping[str, Any] | None) -> list[tuple[Any, ...]]:
        if parameters is None:
            return [tuple(row) for row in await self._connection.fetch(sql)]
        text, names = _numbered(sql)
        return [tuple(row) for row in await self._connection.fetch(text, *(parameters[name] for name in names))]


@lru_cache(maxsize=64)
def _numbered(sql: str) -> tuple[str, tuple[str, ...]]:
    """With asyncpg's placeholders, and which parameters they stand for."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return "%" if found[1] is None else f"${names.setdefault(found[1], len(names) + 1)}"

    return _PLACEHOLDER.sub(number, sql), tuple(names)
