"""From the object that a program has for its transaction to the driver's connection, and to the thread it is used in.

Frameworks are recognised by the names of the object's classes, so that none is imported here.
"""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from supervisor.domain.errors import InvalidJob

Answer = TypeVar("Answer")

_SYNCHRONOUS = (
    "SQLite's: a sqlite3.Connection, SQLAlchemy's Session or Connection, Django's connection, peewee's database"
)
_ASYNCHRONOUS = "an aiosqlite.Connection, or SQLAlchemy's AsyncSession or AsyncConnection with aiosqlite"
_SESSIONS = {"sqlalchemy.Session", "sqlalchemy.scoped_session"}
_ASYNC_SESSIONS = {"sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection", "sqlalchemy.async_scoped_session"}
_FACTORIES = {"sqlalchemy.Engine", "sqlalchemy.AsyncEngine", "sqlalchemy.sessionmaker", "sqlalchemy.async_sessionmaker"}


def on_driver(connection: Any, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
    """Run `work` on the driver's connection behind the caller's object, where that connection may be used.

    Raises InvalidJob if there is no SQLite connection behind it.
    """
    if isinstance(connection, sqlite3.Connection):
        return work(connection)
    kinds = _kinds(connection)
    found = connection
    if kinds & {"sqlalchemy.Connection", *_SESSIONS}:
        found = _of_sqlalchemy(connection, kinds)
        if "aiosqlite.Connection" in _kinds(found):  # inside run_sync
            await_only = sys.modules["sqlalchemy.util"].await_only
            answer: Answer = await_only(_in_thread(found, work))
            return answer
    elif kinds & {"django.ConnectionProxy", "django.BaseDatabaseWrapper"} and connection.vendor == "sqlite":
        connection.ensure_connection()
        found = connection.connection
    elif "peewee.Proxy" in kinds and connection.obj is not None:
        return on_driver(connection.obj, work)
    elif "peewee.Database" in kinds:
        found = connection.connection()
    if not isinstance(found, sqlite3.Connection):
        raise _refused(connection, kinds, _SYNCHRONOUS, asynchronous=False)
    return work(found)


def is_asynchronous(connection: Any) -> bool:
    """Whether `awaited` takes it, and not `on_driver`."""
    return bool(_kinds(connection) & {"aiosqlite.Connection", *_ASYNC_SESSIONS})


async def awaited(connection: Any, call: Callable[[object], Answer]) -> Answer:
    """Run `call` with the synchronous form of the caller's asynchronous connection, without blocking the event loop.

    Raises InvalidJob for any other object.
    """
    kinds = _kinds(connection)
    if kinds & _ASYNC_SESSIONS:
        session = connection() if "sqlalchemy.async_scoped_session" in kinds else connection
        answer: Answer = await session.run_sync(call)
        return answer
    if "aiosqlite.Connection" in kinds and connection._connection is not None:
        return await _in_thread(connection, call)
    raise _refused(connection, kinds, _ASYNCHRONOUS, asynchronous=True)


async def _in_thread(connection: Any, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
    """In the thread that alone may use the driver's connection of an aiosqlite.Connection."""

    def call() -> Answer:
        try:
            return work(connection._conn)
        except StopIteration as error:  # no future of asyncio can hold it
            raise RuntimeError(f"the call raised {type(error).__name__}") from error

    answer: Answer = await connection._execute(call)
    return answer


def _of_sqlalchemy(connection: Any, kinds: set[str]) -> Any:
    if kinds & _SESSIONS:
        connection = connection.connection()
    elif not connection.in_transaction():
        connection.exec_driver_sql("SELECT 1")  # its transaction begins, as with any statement; else it never commits
    return connection.connection.driver_connection


def _kinds(connection: object) -> set[str]:
    """The classes of an object as `package.Class`, with the outermost package."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}


def _refused(connection: object, kinds: set[str], expected: str, *, asynchronous: bool) -> InvalidJob:
    kind = f"{type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"
    if kinds & _FACTORIES:
        problem = f"a {kind} has no transaction of its own; give the session or connection that has begun one"
    elif asynchronous and (kinds & _SESSIONS or isinstance(connection, sqlite3.Connection)):
        problem = f"a {kind} would block the event loop; use Queue with it, or give {expected}"
    elif not asynchronous and is_asynchronous(connection):
        problem = f"a {kind} is asynchronous; use AsyncQueue, or its run_sync if it has one"
    else:
        problem = f"a {kind} is none that can be used here; give {expected}"
    return InvalidJob("connection", problem)
