"""From the object that a program has for its transaction to what may be behind it.

Frameworks are recognised by the names of the object's classes, so that none is imported here.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from supervisor.domain.errors import InvalidJob

SESSIONS = {"sqlalchemy.Session", "sqlalchemy.scoped_session"}
ASYNC_SESSIONS = {"sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection", "sqlalchemy.async_scoped_session"}
DJANGO = {"django.ConnectionProxy", "django.BaseDatabaseWrapper"}
_FACTORIES = {"sqlalchemy.Engine", "sqlalchemy.AsyncEngine", "sqlalchemy.sessionmaker", "sqlalchemy.async_sessionmaker"}


def kinds_of(connection: object) -> set[str]:
    """The classes of an object as `package.Class`, with the outermost package."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}


def of_framework(connection: Any, kinds: Set[str], vendor: str) -> Any:
    """The driver's connection behind SQLAlchemy's or Django's object; any other object as it is. `vendor` is Django's
    name of the engine.
    """
    if kinds & {"sqlalchemy.Connection", *SESSIONS}:
        if kinds & SESSIONS:
            connection = connection.connection()
        elif not connection.in_transaction():
            connection.exec_driver_sql(
                "SELECT 1"
            )  # its transaction begins, as with any statement; else it never commits
        return connection.connection.driver_connection
    if kinds & DJANGO and connection.vendor == vendor:
        connection.ensure_connection()
        return connection.connection
    return connection


async def in_greenlet(connection: Any, kinds: Set[str], call: Any) -> Any:
    """Run `call` with the synchronous form of SQLAlchemy's asynchronous session or connection."""
    session = connection() if "sqlalchemy.async_scoped_session" in kinds else connection
    return await session.run_sync(call)


def refused(
    connection: object,
    expected: str,
    *,
    asynchronous: bool,
    blocking: Set[str] = frozenset(),
    awaiting: Set[str] = frozenset(),
) -> InvalidJob:
    """Why an object cannot be used. `blocking` and `awaiting` are the kinds that the engine takes in the other form."""
    kinds = kinds_of(connection)
    kind = f"{type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"
    if kinds & _FACTORIES:
        problem = f"a {kind} has no transaction of its own; give the session or connection that has begun one"
    elif asynchronous and kinds & {*SESSIONS, *blocking}:
        problem = f"a {kind} would block the event loop; use Queue with it, or give {expected}"
    elif not asynchronous and kinds & {*ASYNC_SESSIONS, *awaiting}:
        problem = f"a {kind} is asynchronous; use AsyncQueue, or its run_sync if it has one"
    else:
        problem = f"a {kind} is none that can be used here; give {expected}"
    return InvalidJob("connection", problem)
