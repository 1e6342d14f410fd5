"""Enqueueing jobs and looking at them: durably, on a connection of ours, or in a transaction of the caller's."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import time
from collections.abc import Callable
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.domain.errors import holdable
from supervisor.domain.job import NewJob, NewJobs
from supervisor.store.ownership import Ownership
from supervisor.store.sql.inserting import Put
from supervisor.store.sql.producer import Producer, TransactionalInsert
from supervisor.store.sql.registry import Registry
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.store.sqlite.inserting import insert, insert_or_find, insert_whole, plain_cursor
from supervisor.store.sqlite.writelock import WriterWatch

if TYPE_CHECKING:
    from supervisor.store.sql.stores import Operations

Answer = TypeVar("Answer")

_CHECK_EVERY = 10.0  # seconds between two checks whether a supervisor is running


def ownership(files: DatabaseFiles) -> Ownership:
    return Ownership(files, partial(WriterWatch, files))  # it is pickled with the engine


def registry(connection: Connection) -> Registry:
    return Registry(connection, ownership(connection.files))


def supervised(connection: Connection) -> bool:
    """Whether any supervisor of this database is alive: then checkpoints are its maintainer's."""
    known = registry(connection)
    return any(known.owner_lives(record) for record in known.supervisors())


def operations(connection: Connection) -> Operations:
    """The connection should commit with synchronous=FULL."""
    from supervisor.store.sql.statistics import Statistics
    from supervisor.store.sql.stores import Operations

    connection.checkpoint_itself(not supervised(connection))
    return Operations(connection, registry(connection), Statistics(connection, connection.files.log_size))


class SqliteTransactionalInsert(TransactionalInsert):
    vendor = "sqlite"
    driver = sqlite3.Connection
    queries = QUERIES
    awaited_kinds = frozenset({"aiosqlite.Connection"})
    database = "an SQLite file"
    takes = "a sqlite3.Connection, SQLAlchemy's Session or Connection, Django's connection, peewee's database"
    takes_awaited = "an aiosqlite.Connection, or SQLAlchemy's AsyncSession or AsyncConnection with aiosqlite"

    def __init__(self, files: DatabaseFiles, migrate: Callable[[], object]) -> None:
        self._files = files
        self._migrate = migrate
        self.used = False  # since a producer of this engine last wrote
        self._made = False  # tables, in a transaction that may be rolled back

    def _prepare(self, raw: sqlite3.Connection, create: bool) -> bool:
        there = schema.prepare(raw, self._files, create=create, migrate=self._migrate)
        if there and self._made and raw.in_transaction:
            return False  # it may be the transaction that has made them
        self._made = not there
        return there

    def _insert(self, raw: sqlite3.Connection, jobs: NewJobs) -> list[int]:
        self.used = True
        return insert_whole(raw, jobs)

    def _put(self, raw: sqlite3.Connection, job: NewJob) -> Put:
        self.used = True
        return insert_or_find(plain_cursor(raw), job, time.time())

    def _plain(self, raw: sqlite3.Connection) -> sqlite3.Cursor:
        return plain_cursor(raw)

    def _inside_run_sync(self, connection: Any, found: Any, work: Callable[[Any], Answer]) -> Answer:
        answer: Answer = sys.modules["sqlalchemy.util"].await_only(self._in_thread(found, work))
        return answer

    async def _in_thread(self, connection: Any, call: Callable[[Any], Answer]) -> Answer:
        """In the thread that alone may use the driver's connection of an aiosqlite.Connection.

        Once the caller is cancelled, a call that has not begun is not made, and one that has begun is waited for:
        nothing of it happens on the connection later.
        """
        import asyncio  # only programs with an event loop pay for it

        cancelled = False

        def work() -> Answer | None:
            if cancelled:
                return None
            try:
                return call(connection._conn)
            except StopIteration as error:
                raise holdable(error) from error

        making = asyncio.ensure_future(connection._execute(work))
        try:
            answer: Answer = await asyncio.shield(making)
        except asyncio.CancelledError:
            cancelled = True
            while not making.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([making])
            raise
        return answer


class SqliteProducer(Producer):
    """Its connection commits with synchronous=FULL, unless a job need not be durable.

    Checkpoints are the maintainer's; this connection makes them only while no supervisor is running.
    """

    _connection: Connection

    def __init__(self, connection: Connection, transactional: SqliteTransactionalInsert) -> None:
        super().__init__(connection)
        self._transactional = transactional
        self._check_at = 0.0

    def make_durable(self) -> None:
        self._connection.files.sync_log()

    def _insert(self, raw: sqlite3.Connection, jobs: NewJobs) -> list[int]:
        return insert(raw, jobs, time.time())

    def _put(self, raw: sqlite3.Connection, job: NewJob) -> Put:
        return insert_or_find(raw, job, time.time())

    def _now(self) -> float:
        return time.time()

    def _before(self) -> None:
        if self._transactional.used:  # by connections that do not use our lock: leave them more of the time
            self._transactional.used = False
            self._connection.yield_to_others()
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + _CHECK_EVERY
            self._connection.checkpoint_itself(not supervised(self._connection))

    @cached_property
    def operations(self) -> Operations:
        return operations(self._connection)

    def gone(self) -> bool:
        return self._connection.moved or super().gone()
