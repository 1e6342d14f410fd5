"""SQLAlchemy's sessions and connections, on both engines: jobs are part of their transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncQueue, InvalidJob, Queue, task
from tests.postgres_server import Databases

sqlalchemy = pytest.importorskip("sqlalchemy")

DRIVERS = {"sqlite": "sqlite+aiosqlite", "psycopg": "postgresql+psycopg", "asyncpg": "postgresql+asyncpg"}


@task("note.sqlalchemy")
def noted(text: str) -> None: ...


@pytest.fixture
def url(request: pytest.FixtureRequest, driver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of the engine that the test names in its parameter `driver`."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    if driver == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    postgres: Databases = request.getfixturevalue("postgres")
    return postgres.fresh_database()


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue(url) as queue:
        queue.create_tables()
        yield queue


def address(url: str, driver: str) -> str:
    return f"{DRIVERS[driver]}:{url.partition(':')[2]}"


@pytest.fixture
def engine(queue: Queue, url: str, driver: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(url if driver == "sqlite" else address(url, driver))
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (n INTEGER)")
    yield engine
    engine.dispose()


@pytest.mark.parametrize("driver", ["sqlite", "psycopg"])
@pytest.mark.parametrize("kind", ["session", "scoped session", "connection"])
@pytest.mark.parametrize("first", [True, False])
def test_a_session_or_connection(queue: Queue, engine: Any, kind: str, first: bool) -> None:
    from sqlalchemy import orm, text

    makers = {
        "session": lambda: orm.Session(engine),
        "scoped session": orm.scoped_session(orm.sessionmaker(engine)),
        "connection": engine.connect,
    }
    for commit in (False, True):
        own: Any = makers[kind]()
        if first:
            own.execute(text("INSERT INTO orders VALUES (1)"))
        job_id = queue.enqueue("tag", {"n": 1}, connection=own)
        queue.enqueue_many("tag", [1, 2], connection=own)
        assert queue.put("tag", unique_key="k", connection=own)[1]
        assert queue.count() == 0
        (own.commit if commit else own.rollback)()
        own.close()
        assert queue.count() == (4 if commit else 0)
        with engine.connect() as look:
            assert look.execute(text("SELECT count(*) FROM orders")).scalar() == (1 if commit and first else 0)
    assert queue.job(job_id).payload == {"n": 1}


@pytest.mark.parametrize("driver", ["sqlite"])
def test_a_block_that_fails_leaves_no_job(queue: Queue, engine: Any) -> None:
    from sqlalchemy import orm

    with contextlib.suppress(ZeroDivisionError), orm.Session(engine) as session, session.begin():
        queue.enqueue("tag", connection=session)
        raise ZeroDivisionError
    assert queue.count() == 0
    with engine.begin() as connection:
        queue.enqueue("tag", connection=connection)
    assert queue.count() == 1


@pytest.mark.parametrize("driver", ["sqlite", "psycopg"])
def test_what_has_no_transaction_is_refused(queue: Queue, engine: Any) -> None:
    from sqlalchemy import orm

    for wrong in (engine, orm.sessionmaker(engine)):
        with pytest.raises(InvalidJob, match="has no transaction of its own; give the session or connection"):
            queue.enqueue("tag", connection=wrong)


@pytest.mark.parametrize("driver", list(DRIVERS))
def test_asynchronous_sessions_and_connections(queue: Queue, url: str, driver: str) -> None:
    pytest.importorskip("aiosqlite" if driver == "sqlite" else driver)
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def use() -> None:
        engine = create_async_engine(address(url, driver))
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (n INTEGER)"))
        async with AsyncQueue(url) as many:
            for commit in (False, True):
                for own in (AsyncSession(engine), await engine.connect()):
                    before = await many.count()
                    await own.execute(text("INSERT INTO orders VALUES (1)"))
                    await many.enqueue("tag", connection=own)
                    await many.enqueue_many("tag", [1, 2], connection=own)
                    assert (await many.put("tag", connection=own))[1]
                    await noted.options(queue=many, connection=own).aenqueue("a")
                    await own.run_sync(lambda one: queue.enqueue("tag", connection=one))
                    assert await many.count() == before
                    await (own.commit() if commit else own.rollback())
                    await own.close()
                    assert await many.count() == before + 6 * commit
            before = await many.count()
            async with engine.connect() as own:
                await many.enqueue("tag", connection=own)  # the first statement of its transaction
                with pytest.raises(InvalidJob, match="is asynchronous; use AsyncQueue"):
                    queue.enqueue("tag", connection=own)
                await own.commit()
            assert await many.count() == before + 1
            with pytest.raises(InvalidJob, match="has no transaction of its own"):
                await many.enqueue("tag", connection=engine)
        await engine.dispose()

    asyncio.run(use())
