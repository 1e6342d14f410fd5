"""Enqueueing jobs and looking at them: durably, on a connection of ours, or in a transaction of the caller's.

That is on connections of psycopg, of asyncpg, and of what uses them. Our statements are written once, for a connection
that answers. In front of one that is awaited stands a `_Awaited`, which runs a coroutine for each statement in the task
of the caller: from SQLAlchemy's greenlet, or for a thread.
"""

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

from supervisor.domain.errors import Conflict, InvalidJob, holdable
from supervisor.domain.job import Job, NewJob, NewJobs
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.changes import RENEWAL, SLEEP
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.inserting import in_order_of_keys, in_places, insert, insert_or_find
from supervisor.store.postgres.maintenance import operations
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import RowRefused, Transaction
from supervisor.store.sql.jobs import job_of
from supervisor.store.sql.producer import (
    ASYNC_SESSIONS,
    SESSIONS,
    Producer,
    Requests,
    in_greenlet,
    kinds_of,
    of_framework,
    refused,
)
from supervisor.store.sql.stores import Operations

Answer = TypeVar("Answer")

_SYNCHRONOUS = "PostgreSQL's: a psycopg.Connection, SQLAlchemy's Session or Connection, Django's connection"
_ASYNCHRONOUS = "a psycopg.AsyncConnection, asyncpg's connection, or SQLAlchemy's AsyncSession or AsyncConnection"
_PSYCOPG, _ASYNCPG = {"psycopg.AsyncConnection"}, {"asyncpg.Connection", "asyncpg.PoolConnectionProxy"}
_AWAITED = _PSYCOPG | _ASYNCPG
_PLACEHOLDER = re.compile(r"%\((\w+)\)s|%%")

Await = Callable[[Coroutine[Any, Any, Any]], Any]


class PostgresProducer(Producer):
    """Its connection commits durably."""

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


class PostgresTransactionalInsert:
    """Implements `store.base.TransactionalInsert`."""

    def __init__(self, address: Address, migrate: Callable[[], object]) -> None:
        self._address = address
        self._migrate = migrate

    def prepare(self, connection: Any, *, create: bool) -> bool:
        return schema.prepare(_of_caller(connection), self._address.shown, create=create, migrate=self._migrate)

    def insert(self, connection: Any, jobs: NewJobs) -> list[int]:
        return insert(_of_caller(connection), jobs, None)

    def put(self, connection: Any, job: NewJob) -> tuple[int, bool]:
        return insert_or_find(_of_caller(connection), job, None)

    def job(self, connection: Any, job_id: int) -> Job | None:
        row = _of_caller(connection).execute(QUERIES.job, {"id": job_id}).fetchone()
        return None if row is None else job_of(row)

    def is_asynchronous(self, connection: Any) -> bool:
        return bool(kinds_of(connection) & {*_AWAITED, *ASYNC_SESSIONS})

    async def awaited(self, connection: Any, call: Callable[[object], Answer]) -> Answer:
        kinds = kinds_of(connection)
        if kinds & ASYNC_SESSIONS:
            answer: Answer = await in_greenlet(connection, kinds, call)
            return answer
        if kinds & _AWAITED:
            return await _in_thread(connection, call)
        raise refused(connection, _ASYNCHRONOUS, asynchronous=True, blocking={"psycopg.Connection"})


async def _in_thread(connection: Any, call: Callable[[object], Answer]) -> Answer:
    """Run `call` in a thread, and its statements here, in the task of the caller.

    So the driver is told of a cancellation as in any statement of the caller's, and none is sent after it.
    """
    statements = _Statements()
    ended: Future[Answer] = Future()

    def run() -> None:
        try:
            ended.set_result(call(_Awaited(connection, statements.run)))
        except BaseException as raised:
            ended.set_exception(holdable(raised))
        statements.end()

    threading.Thread(target=run, name="supervisor_caller", daemon=True).start()
    await statements.serve()
    return ended.result()


class _Statements:
    """Passes coroutines from a thread to the task that made this. Once that task is cancelled, it takes no more."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._asked: asyncio.Queue[tuple[Coroutine[Any, Any, Any], Future[Any]] | None] = asyncio.Queue()
        self._closed: BaseException | None = None

    def run(self, statement: Coroutine[Any, Any, Any]) -> Any:
        """In the thread: what the coroutine returns or raises."""
        answer: Future[Any] = Future()
        try:
            self._loop.call_soon_threadsafe(self._ask, statement, answer)
        except BaseException:  # the loop is closed
            statement.close()
            raise
        return answer.result()

    def _ask(self, statement: Coroutine[Any, Any, Any], answer: Future[Any]) -> None:
        if self._closed is None:
            self._asked.put_nowait((statement, answer))
        else:
            statement.close()
            answer.set_exception(self._closed)

    def end(self) -> None:
        """In the thread: it asks for no more."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._asked.put_nowait, None)

    async def serve(self) -> None:
        """In the task: run what the thread asks for, until it ends."""
        try:
            while (asked := await self._asked.get()) is not None:
                await self._answer(*asked)
        except BaseException as error:
            self._closed = error
            while not self._asked.empty():
                if (asked := self._asked.get_nowait()) is not None:
                    self._ask(*asked)
            raise

    async def _answer(self, statement: Coroutine[Any, Any, Any], answer: Future[Any]) -> None:
        try:
            found = await statement
        except BaseException as error:
            answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            answer.set_result(found)


def _of_caller(connection: Any) -> Any:
    """What runs our statements on the driver's connection behind the caller's object.

    Raises InvalidJob if there is none.
    """
    if isinstance(connection, _Awaited):
        return connection
    found = of_framework(connection, kinds_of(connection), "postgresql")
    if isinstance(found, psycopg.Connection):
        return _Plain(found)
    if found is not connection and kinds_of(found) & _AWAITED:  # inside run_sync
        if kinds_of(found) & _ASYNCPG and not found.is_in_transaction():  # it begins with the first statement
            own = connection.connection() if kinds_of(connection) & SESSIONS else connection
            own.exec_driver_sql("SELECT 1")
        return _Awaited(found, sys.modules["sqlalchemy.util"].await_only)
    raise refused(connection, _SYNCHRONOUS, asynchronous=False, awaiting=_AWAITED)


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
