"""On PostgreSQL, too, a job in the transaction of the application exists if and only if that transaction commits."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from supervisor import AsyncQueue, Enqueue, InvalidJob, JobNotFound, Queue, StoreError, task
from tests.postgres_server import Databases


@task("note.postgres")
def noted(text: str) -> None: ...


@pytest.fixture
def url(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return postgres.fresh_database()


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue(url) as queue:
        queue.create_tables()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY)")
        yield queue


def enqueued(queue: Queue, connection: Any) -> int:
    """Five jobs, in each way that there is. Returns the id of the first."""
    first = queue.enqueue("tag", {"n": 1}, connection=connection)
    queue.enqueue_many("tag", [1, Enqueue(2, unique_key="many")], connection=connection)
    assert queue.put("tag", unique_key="k", connection=connection)[1]
    assert not queue.put("tag", unique_key="k", connection=connection)[1]
    noted.options(queue=queue, connection=connection).enqueue("a")
    assert queue.job(first, connection=connection).payload == {"n": 1}
    return first


@pytest.mark.parametrize("rows", [None, dict_row])
def test_a_connection_of_psycopg(queue: Queue, url: str, rows: Any) -> None:
    with psycopg.connect(url, row_factory=rows or psycopg.rows.tuple_row) as connection:
        for commit in (False, True):
            connection.execute("INSERT INTO orders DEFAULT VALUES")
            first = enqueued(queue, connection)
            assert queue.count() == 0
            with pytest.raises(JobNotFound):
                queue.job(first)
            (connection.commit if commit else connection.rollback)()
            assert queue.count() == (5 if commit else 0)
        assert len(connection.execute("SELECT id FROM orders").fetchall()) == 1


def test_a_savepoint_that_is_rolled_back_takes_its_job_along(queue: Queue, url: str) -> None:
    with psycopg.connect(url) as connection:
        with contextlib.suppress(ZeroDivisionError), connection.transaction():
            queue.enqueue("tag", connection=connection)
            raise ZeroDivisionError
        queue.enqueue("mail", connection=connection)
    assert (queue.count("tag"), queue.count("mail")) == (0, 1)


def test_the_tables_are_made_on_first_use(url: str) -> None:
    with Queue(url) as queue, psycopg.connect(url) as connection:
        queue.enqueue("tag", connection=connection)
        connection.rollback()
        assert queue.count() == 0


def test_without_create_the_missing_tables_are_named(url: str) -> None:
    missing = pytest.raises(StoreError, match=r"the job tables are missing; call Queue\.create_tables")
    with Queue(url, create=False) as queue, psycopg.connect(url) as connection, missing:
        queue.enqueue("tag", connection=connection)


def test_a_wrong_object_gets_one_sentence(queue: Queue, url: str) -> None:
    async def asynchronous() -> None:
        connection = await psycopg.AsyncConnection.connect(url)
        with pytest.raises(InvalidJob, match=r"a psycopg\.AsyncConnection is asynchronous; use AsyncQueue"):
            queue.enqueue("tag", connection=connection)
        await connection.close()
        async with AsyncQueue(url) as awaited:
            refused = pytest.raises(InvalidJob, match="would block the event loop")
            with psycopg.connect(url) as blocking, refused:
                await awaited.enqueue("tag", connection=blocking)
            with pytest.raises(InvalidJob, match=r"give a psycopg\.AsyncConnection, asyncpg's connection"):
                await awaited.enqueue("tag", connection=object())

    for wrong in (object(), "x", queue):
        with pytest.raises(InvalidJob, match=r"connection: a .* give PostgreSQL's: a psycopg\.Connection"):
            queue.enqueue("tag", connection=wrong)
    asyncio.run(asynchronous())
    assert queue.count() == 0


async def enqueued_async(queue: AsyncQueue, connection: Any) -> None:
    """Five jobs."""
    first = await queue.enqueue("tag", {"n": 1, "ü": "🎉"}, connection=connection)
    await queue.enqueue_many("tag", [1, Enqueue(2, unique_key="many", priority=3)], connection=connection)
    assert (await queue.put("tag", unique_key="k", meta={"a": 1}, delay="1h", connection=connection))[1]
    assert not (await queue.put("tag", unique_key="k", connection=connection))[1]
    await noted.options(queue=queue, connection=connection).aenqueue("a")
    assert (await queue.job(first, connection=connection)).payload == {"n": 1, "ü": "🎉"}
    assert await queue.count() == 0


def test_an_asynchronous_connection_of_psycopg(queue: Queue, url: str) -> None:
    async def use() -> None:
        connection = await psycopg.AsyncConnection.connect(url, row_factory=dict_row)
        async with connection, AsyncQueue(url) as many:
            for commit in (False, True):
                await connection.execute("INSERT INTO orders DEFAULT VALUES")
                await enqueued_async(many, connection)
                await (connection.commit() if commit else connection.rollback())
                assert await many.count() == (5 if commit else 0)

    asyncio.run(use())


def test_asyncpg(queue: Queue, url: str) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def use() -> None:
        pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        async with pool, AsyncQueue(url) as many, pool.acquire() as pooled:
            for connection in (pooled, pooled._con):
                with pytest.raises(InvalidJob, match=r"async with connection\.transaction\(\)"):
                    await many.enqueue("tag", connection=connection)
                with contextlib.suppress(ZeroDivisionError):
                    async with connection.transaction():
                        await enqueued_async(many, connection)
                        raise ZeroDivisionError
                assert await many.count() == 0
            async with pooled.transaction():
                await enqueued_async(many, pooled)
            assert await many.count() == 5
            transaction = pooled.transaction()
            await transaction.start()
            with pytest.raises(asyncpg.PostgresError):
                await pooled.execute("SELECT 1 / 0")
            with pytest.raises(asyncpg.PostgresError, match="aborted"):  # the driver's errors arrive as they are
                await many.enqueue("tag", connection=pooled)
            await transaction.rollback()

    asyncio.run(use())


def test_the_event_loop_goes_on_meanwhile(queue: Queue, url: str) -> None:
    """Another transaction holds the table: who awaits waits, and the loop does not."""

    async def use() -> None:
        other = await psycopg.AsyncConnection.connect(url)
        own = await psycopg.AsyncConnection.connect(url)
        async with other, own, AsyncQueue(url) as many:
            await other.execute("LOCK TABLE jobs IN EXCLUSIVE MODE")
            waiting = asyncio.create_task(many.enqueue("tag", connection=own))
            while not await blocked(url):
                await asyncio.sleep(0.01)
            await other.rollback()
            await waiting
            await own.commit()

    asyncio.run(use())
    assert queue.count() == 1


KINDS = ["psycopg", "asyncpg", "sqlalchemy+psycopg", "sqlalchemy+asyncpg"]


@contextlib.asynccontextmanager
async def connected(kind: str, url: str) -> AsyncIterator[tuple[Any, Any, Any]]:
    """A connection in a transaction; how to roll that back; and how its next user runs a statement and commits."""
    if kind == "psycopg":
        async with await psycopg.AsyncConnection.connect(url) as own:
            await own.execute("INSERT INTO orders DEFAULT VALUES")

            async def commit() -> None:
                await own.execute("INSERT INTO orders DEFAULT VALUES")
                await own.commit()

            yield own, own.rollback, commit
    elif kind == "asyncpg":
        raw = await pytest.importorskip("asyncpg").connect(url)
        transaction = raw.transaction()
        await transaction.start()
        await raw.execute("INSERT INTO orders DEFAULT VALUES")
        yield raw, transaction.rollback, lambda: raw.execute("INSERT INTO orders DEFAULT VALUES")
        await raw.close()
    else:
        pytest.importorskip("sqlalchemy")
        pytest.importorskip(kind.partition("+")[2])
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(url.replace("postgresql:", f"postgresql+{kind.partition('+')[2]}:"))
        async with engine.connect() as connection:
            await connection.execute(text("INSERT INTO orders DEFAULT VALUES"))

            async def use() -> None:
                await connection.execute(text("INSERT INTO orders DEFAULT VALUES"))
                await connection.commit()

            yield connection, connection.rollback, use
        await engine.dispose()


def their_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "supervisor_caller"]


async def gone(threads: list[threading.Thread]) -> None:
    for thread in threads:
        await asyncio.to_thread(thread.join, 20)
        assert not thread.is_alive()


@pytest.mark.parametrize("kind", KINDS)
def test_after_a_cancellation_nothing_more_is_sent_on_the_connection(queue: Queue, url: str, kind: str) -> None:
    """While the first of two statements waits. The transaction is rolled back, and the connection is used again."""

    async def use() -> None:
        other = await psycopg.AsyncConnection.connect(url)
        async with other, AsyncQueue(url) as many, connected(kind, url) as (own, rollback, next_use):
            await other.execute("LOCK TABLE jobs")
            request = asyncio.create_task(many.enqueue("tag", unique_key="k", connection=own))
            while not await blocked(url):
                await asyncio.sleep(0.01)
            threads = their_threads()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            ending = asyncio.create_task(rollback())
            await other.rollback()
            await ending
            await gone(threads)
            await next_use()

    asyncio.run(use())
    assert queue.count() == 0
    with psycopg.connect(url) as look:
        assert look.execute("SELECT count(*) FROM orders").fetchone() == (1,)


class Held:
    """Middleware that waits until it is told to go on."""

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()

    def on_enqueue(self, job: Any) -> Any:
        self.there.set()
        assert self.go.wait(20)
        return job


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
def test_a_call_that_is_cancelled_between_its_statements_sends_no_other(queue: Queue, url: str, kind: str) -> None:
    held = Held()

    async def use() -> None:
        async with AsyncQueue(url, middleware=[held]) as many, connected(kind, url) as (own, rollback, next_use):
            request = asyncio.create_task(many.enqueue("tag", connection=own))
            assert await asyncio.to_thread(held.there.wait, 20)
            threads = their_threads()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await rollback()
            held.go.set()
            await gone(threads)
            await next_use()

    asyncio.run(use())
    assert queue.count() == 0


async def blocked(url: str) -> bool:
    look = await psycopg.AsyncConnection.connect(url)
    async with look:
        found = await look.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'jobs'::regclass")
        return await found.fetchone() is not None


def test_djangos_connection(queue: Queue, url: str) -> None:
    pytest.importorskip("django")
    program = """
        import sys
        from urllib.parse import urlsplit
        from django.conf import settings
        url = sys.argv[1]
        at = urlsplit(url)
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": at.path[1:],
            "USER": at.username, "PASSWORD": at.password or "", "HOST": at.hostname, "PORT": at.port}})
        from django.db import connection, connections, transaction
        from supervisor import Queue
        queue = Queue(url)
        for own in (connection, connections["default"]):
            try:
                with transaction.atomic():
                    queue.enqueue("tag", connection=own)
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            print(queue.count())
            with transaction.atomic():
                queue.enqueue("tag", connection=own)
            print(queue.count())
            queue.delete(queue.cancel(queue.jobs()[0].id) and queue.jobs()[0].id)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), url], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout.split() == ["0", "1", "0", "1"], ran.stderr
