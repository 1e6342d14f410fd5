"""From the object that a program has for its transaction to the driver's connection, and to the thread it is used in.

Frameworks are recognised by the names of the object's classes, so that none is imported here.
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from supervisor.domain.futures import holdable
from supervisor.store.sql.producer import ASYNC_SESSIONS, in_greenlet, kinds_of, of_framework, refused

Answer = TypeVar("Answer")

_SYNCHRONOUS = (
    "SQLite's: a sqlite3.Connection, SQLAlchemy's Session or Connection, Django's connection, peewee's database"
)
_ASYNCHRONOUS = "an aiosqlite.Connection, or SQLAlchemy's AsyncSession or AsyncConnection with aiosqlite"
_AWAITED = {"aiosqlite.Connection"}


def on_driver(connection: Any, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
    """Run `work` on the driver's connection behind the caller's object, where that connection may be used.

    Raises InvalidJob if there is no SQLite connection behind it.
    """
    if isinstance(connection, sqlite3.Connection):
        return work(connection)
    kinds = kinds_of(connection)
    if "peewee.Proxy" in kinds and connection.obj is not None:
        return on_driver(connection.obj, work)
    found = connection.connection() if "peewee.Database" in kinds else of_framework(connection, kinds, "sqlite")
    if found is not connection and "aiosqlite.Connection" in kinds_of(found):  # inside run_sync
        await_only = sys.modules["sqlalchemy.util"].await_only
        answer: Answer = await_only(_in_thread(found, work))
        return answer
    if not isinstance(found, sqlite3.Connection):
        raise refused(connection, _SYNCHRONOUS, asynchronous=False, awaiting=_AWAITED)
    return work(found)


def is_asynchronous(connection: Any) -> bool:
    """Whether `awaited` takes it, and not `on_driver`."""
    return bool(kinds_of(connection) & {*_AWAITED, *ASYNC_SESSIONS})


async def awaited(connection: Any, call: Callable[[object], Answer]) -> Answer:
    """Run `call` with the synchronous form of the caller's asynchronous connection, without blocking the event loop.

    Raises InvalidJob for any other object.
    """
    kinds = kinds_of(connection)
    if kinds & ASYNC_SESSIONS:
        answer: Answer = await in_greenlet(connection, kinds, call)
        return answer
    if "aiosqlite.Connection" in kinds and connection._connection is not None:
        return await _in_thread(connection, call)
    raise refused(connection, _ASYNCHRONOUS, asynchronous=True, blocking={"sqlite3.Connection"})


async def _in_thread(connection: Any, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
    """In the thread that alone may use the driver's connection of an aiosqlite.Connection.

    Once the caller is cancelled, a call that has not begun is not made, and one that has begun is waited for: nothing
    of it happens on the connection later.
    """
    import asyncio  # only programs with an event loop pay for it

    cancelled = False

    def call() -> Answer | None:
        if cancelled:
            return None
        try:
            return work(connection._conn)
        except StopIteration as error:
            raise holdable(error) from error

    making = asyncio.ensure_future(connection._execute(call))
    try:
        answer: Answer = await asyncio.shield(making)
    except asyncio.CancelledError:
        cancelled = True
        while not making.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([making])
        raise
    return answer
