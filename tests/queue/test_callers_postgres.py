"""On PostgreSQL, too, a job in the transaction of the application exists if and only if that transaction commits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from supervisor import AsyncQueue, InvalidJob, Queue, StoreError
from supervisor.store.postgres.address import Address
from tests.postgres_server import Databases
from tests.queue.callers import AWAITED_ON_POSTGRESQL, Own, done, orders
from tests.queue.test_callers import Held


@pytest.fixture
def url(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return postgres.fresh_database()


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    with Queue(url) as queue:
        queue.create_tables()
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE orders (n INTEGER)")
        yield queue


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


def test_urls_of_sqlalchemy_name_the_same_database(queue: Queue, url: str) -> None:
    first = queue.enqueue("tag")
    for driver in ("psycopg", "asyncpg", "psycopg2"):
        with Queue(url.replace(":", f"+{driver}:", 1)) as other:
            assert (other.url, other.job(first).id) == (queue.url, first)


def test_what_the_url_leaves_out_stands_in_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    at = urlsplit(url)
    parts = {"HOST": at.hostname, "PORT": at.port, "USER": at.username, "PASSWORD": at.password}
    for name, value in {**parts, "DATABASE": at.path[1:]}.items():
        monkeypatch.setenv(f"PG{name}", str(value or ""))
    with Queue("postgresql://") as here, Queue(url) as there:
        assert there.job(here.enqueue("tag")).type == "tag"
    folder = Address("postgresql://").folder
    assert folder == Address(f"postgresql://{at.hostname}:{at.port}{at.path}").folder
    monkeypatch.setenv("PGDATABASE", "other")
    assert Address("postgresql://").folder != folder  # supervisors of two databases do not share one


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
            with pytest.raises(InvalidJob, match=r"pass a psycopg\.AsyncConnection, asyncpg's connection"):
                await awaited.enqueue("tag", connection=object())

    for wrong in (object(), "x", queue):
        with pytest.raises(InvalidJob, match=r"this .* is no connection to PostgreSQL; pass a psycopg\.Connection"):
            queue.enqueue("tag", connection=wrong)
    asyncio.run(asynchronous())
    assert queue.count() == 0


def test_a_connection_of_asyncpg_needs_a_transaction_and_its_errors_arrive_as_they_are(queue: Queue, url: str) -> None:
    asyncpg = pytest.importorskip("asyncpg")

    async def use() -> None:
        own, many = await asyncpg.connect(url), AsyncQueue.of(queue)
        with pytest.raises(InvalidJob, match=r"async with connection\.transaction\(\)"):
            await many.enqueue("tag", connection=own)
        transaction = own.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.PostgresError):
            await own.execute("SELECT 1 / 0")
        with pytest.raises(asyncpg.PostgresError, match="aborted"):
            await many.enqueue("tag", connection=own)
        await transaction.rollback()
        await own.close()
        await many.close()

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


KINDS = ["psycopg", "asyncpg", "SQLAlchemy's connection with psycopg", "SQLAlchemy's connection with asyncpg"]


async def with_an_order(own: Own) -> None:
    await done(own.begin())
    await done(own.execute("INSERT INTO orders VALUES (1)"))


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
        async with other, AsyncQueue(url) as many, AWAITED_ON_POSTGRESQL[kind](url) as own:
            await with_an_order(own)
            await other.execute("LOCK TABLE jobs")
            request = asyncio.create_task(many.enqueue("tag", unique_key="k", connection=own.connection))
            while not await blocked(url):
                await asyncio.sleep(0.01)
            threads = their_threads()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            ending = asyncio.create_task(own.rollback())
            await other.rollback()
            await ending
            await gone(threads)
            await with_an_order(own)
            await own.commit()

    asyncio.run(use())
    assert queue.count() == 0
    assert orders(url) == [(1,)]


@pytest.mark.parametrize("kind", ["psycopg", "asyncpg"])
def test_a_call_that_is_cancelled_between_its_statements_sends_no_other(queue: Queue, url: str, kind: str) -> None:
    held = Held()

    async def use() -> None:
        async with AsyncQueue(url, middleware=[held]) as many, AWAITED_ON_POSTGRESQL[kind](url) as own:
            await with_an_order(own)
            request = asyncio.create_task(many.enqueue("tag", connection=own.connection))
            assert await asyncio.to_thread(held.there.wait, 20)
            threads = their_threads()
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            await own.rollback()
            held.go.set()
            await gone(threads)
            await with_an_order(own)
            await own.commit()

    asyncio.run(use())
    assert queue.count() == 0


async def blocked(url: str) -> bool:
    look = await psycopg.AsyncConnection.connect(url)
    async with look:
        found = await look.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'jobs'::regclass")
        return await found.fetchone() is not None
