"""The connections of applications' frameworks, opened in one way, each with a transaction of its own."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sqlite3
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest


class Own(NamedTuple):
    """The application's connection. What it can be asked to do may have to be awaited: see `done`."""

    connection: Any
    execute: Callable[[str], Any]
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    begin: Callable[[], Any] = int  # where that does not go without saying


async def done(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def orders(url: str) -> list[tuple[int, ...]]:
    """The rows of the application's own table, as another connection sees them."""
    import psycopg

    own: Any = sqlite3.connect(path_of(url)) if url.startswith("sqlite") else psycopg.connect(url)
    with contextlib.closing(own):
        found: list[tuple[int, ...]] = own.execute("SELECT n FROM orders").fetchall()
        return found


@contextlib.asynccontextmanager
async def of_sqlite3(url: str) -> AsyncIterator[Own]:
    with contextlib.closing(sqlite3.connect(path_of(url))) as own:
        yield Own(own, own.execute, own.commit, own.rollback)


@contextlib.asynccontextmanager
async def of_aiosqlite(url: str) -> AsyncIterator[Own]:
    async with pytest.importorskip("aiosqlite").connect(path_of(url)) as own:
        yield Own(own, own.execute, own.commit, own.rollback)


@contextlib.asynccontextmanager
async def of_peewee(url: str, *, proxy: bool = False) -> AsyncIterator[Own]:
    peewee = pytest.importorskip("peewee")
    database = peewee.SqliteDatabase(path_of(url))
    own = peewee.DatabaseProxy() if proxy else database
    if proxy:
        own.initialize(database)
    yield Own(own, database.execute_sql, database.commit, database.rollback, database.begin)
    database.close()


@contextlib.asynccontextmanager
async def of_psycopg(url: str, *, rows: str = "tuple_row") -> AsyncIterator[Own]:
    import psycopg.rows

    with psycopg.connect(url, row_factory=getattr(psycopg.rows, rows)) as own:
        yield Own(own, own.execute, own.commit, own.rollback)


@contextlib.asynccontextmanager
async def of_asynchronous_psycopg(url: str) -> AsyncIterator[Own]:
    import psycopg.rows

    async with await psycopg.AsyncConnection.connect(url, row_factory=psycopg.rows.dict_row) as own:
        yield Own(own, own.execute, own.commit, own.rollback)


@contextlib.asynccontextmanager
async def of_asyncpg(url: str, *, pooled: bool = False) -> AsyncIterator[Own]:
    pool = await pytest.importorskip("asyncpg").create_pool(url, min_size=1, max_size=1)
    async with pool, pool.acquire() as acquired:
        transactions: list[Any] = []

        def begin() -> Any:
            transactions.append(acquired.transaction())
            return transactions[-1].start()

        own = acquired if pooled else acquired._con
        yield Own(own, own.execute, lambda: transactions[-1].commit(), lambda: transactions[-1].rollback(), begin)


@contextlib.asynccontextmanager
async def of_sqlalchemy(url: str, *, kind: str) -> AsyncIterator[Own]:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy import orm

    engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    makers = {"session": orm.sessionmaker(engine), "connection": engine.connect}
    own = orm.scoped_session(makers["session"]) if kind == "scoped session" else makers[kind]()
    yield Own(own, lambda text: own.execute(sqlalchemy.text(text)), own.commit, own.rollback)
    own.close()
    engine.dispose()


@contextlib.asynccontextmanager
async def of_asynchronous_sqlalchemy(url: str, *, kind: str, driver: str) -> AsyncIterator[Own]:
    sqlalchemy = pytest.importorskip("sqlalchemy")
    pytest.importorskip(driver)
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(url.replace(":", f"+{driver}:", 1))
    own: Any = AsyncSession(engine) if kind == "session" else await engine.connect()
    yield Own(own, lambda text: own.execute(sqlalchemy.text(text)), own.commit, own.rollback)
    await own.close()
    await engine.dispose()


Kinds = dict[str, Callable[[str], contextlib.AbstractAsyncContextManager[Own]]]
SESSIONS = ("session", "scoped session", "connection")
ON_SQLITE: Kinds = {
    "sqlite3": of_sqlite3,
    "peewee": of_peewee,
    "peewee's proxy": functools.partial(of_peewee, proxy=True),
    **{f"SQLAlchemy's {kind}": functools.partial(of_sqlalchemy, kind=kind) for kind in SESSIONS},
}
AWAITED_ON_SQLITE: Kinds = {
    "aiosqlite": of_aiosqlite,
    **{
        f"SQLAlchemy's asynchronous {kind}": functools.partial(
            of_asynchronous_sqlalchemy, kind=kind, driver="aiosqlite"
        )
        for kind in ("session", "connection")
    },
}
ON_POSTGRESQL: Kinds = {
    "psycopg": of_psycopg,
    "psycopg with dictionaries": functools.partial(of_psycopg, rows="dict_row"),
    **{f"SQLAlchemy's {kind}": functools.partial(of_sqlalchemy, kind=kind) for kind in SESSIONS},
}
AWAITED_ON_POSTGRESQL: Kinds = {
    "psycopg": of_asynchronous_psycopg,
    "asyncpg": of_asyncpg,
    "asyncpg's pool": functools.partial(of_asyncpg, pooled=True),
    **{
        f"SQLAlchemy's {kind} with {driver}": functools.partial(of_asynchronous_sqlalchemy, kind=kind, driver=driver)
        for kind in ("session", "connection")
        for driver in ("psycopg", "asyncpg")
    },
}
