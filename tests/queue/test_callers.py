"""A job in the transaction of the application's own framework exists if and only if that transaction commits."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sqlite3
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from supervisor import AsyncQueue, Enqueue, InvalidJob, JobNotFound, Queue, task
from tests.postgres_server import Databases
from tests.queue.callers import AWAITED_ON_POSTGRESQL, AWAITED_ON_SQLITE, ON_POSTGRESQL, ON_SQLITE, Kinds, done, orders


@task("note")
def noted(text: str) -> None: ...


@pytest.fixture
def server(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a database on a server."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return postgres.fresh_database()


async def enqueued(queue: Queue | AsyncQueue, connection: Any, key: str) -> int:
    """Five jobs, in each way that there is. Returns the id of the first."""

    async def ask(name: str, *given: Any, **options: Any) -> Any:
        return await done(getattr(queue, name)(*given, connection=connection, **options))

    first: int = await ask("enqueue", "tag", {"n": 1, "ü": "🎉"})
    await ask("enqueue_many", "tag", [1, Enqueue(2, unique_key=f"many {key}", priority=3)])
    for new in (True, False):
        assert (await ask("put", "tag", unique_key=key, meta={"a": 1}, delay="1h"))[1] is new
    await noted.options(queue=queue, connection=connection).aenqueue("a")
    assert (await ask("job", first)).payload == {"n": 1, "ü": "🎉"}
    return first


async def conforms(url: str, kinds: Kinds, kind: str, *, awaited: bool) -> None:
    """Rolled back, its jobs and its own row are gone; committed, both are there."""
    with Queue(url) as queue:
        queue.create_tables()
        given = AsyncQueue.of(queue) if awaited else queue
        async with kinds[kind](url) as own:
            await done(own.begin())
            await done(own.execute("CREATE TABLE orders (n INTEGER)"))
            await done(own.commit())
            for first, commit in itertools.product((True, False), repeat=2):
                before = queue.count()
                await done(own.begin())
                if first:  # otherwise a job begins the transaction
                    await done(own.execute("INSERT INTO orders VALUES (1)"))
                job_id = await enqueued(given, own.connection, f"{first} {commit}")
                assert queue.count() == before
                with pytest.raises(JobNotFound):
                    queue.job(job_id)
                await done(own.commit() if commit else own.rollback())
                assert queue.count() == before + 5 * commit
        assert orders(url) == [(1,)]
        await AsyncQueue.of(queue).close()


@pytest.mark.parametrize(
    ("kind", "awaited"), [*((kind, False) for kind in ON_SQLITE), *((kind, True) for kind in AWAITED_ON_SQLITE)]
)
def test_on_sqlite(url: str, kind: str, awaited: bool) -> None:
    asyncio.run(conforms(url, AWAITED_ON_SQLITE if awaited else ON_SQLITE, kind, awaited=awaited))


@pytest.mark.parametrize(
    ("kind", "awaited"), [*((kind, False) for kind in ON_POSTGRESQL), *((kind, True) for kind in AWAITED_ON_POSTGRESQL)]
)
def test_on_postgresql(server: str, kind: str, awaited: bool) -> None:
    asyncio.run(conforms(server, AWAITED_ON_POSTGRESQL if awaited else ON_POSTGRESQL, kind, awaited=awaited))


def test_a_wrong_object_gets_one_sentence(queue: Queue) -> None:
    for wrong in (object(), "sqlite:///app.db", queue, 5):
        with pytest.raises(InvalidJob) as refused:
            queue.enqueue("tag", connection=wrong)
        assert refused.value.field == "connection"
        assert str(refused.value).startswith(f"connection: this {type(wrong).__module__.split('.')[0]}.")
        assert "to an SQLite file; pass a sqlite3.Connection, SQLAlchemy's Session" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert queue.count() == 0


def test_a_blocking_connection_is_refused_by_an_event_loop(url: str, path: Path) -> None:
    async def use() -> None:
        async with AsyncQueue(url) as queue:
            with contextlib.closing(sqlite3.connect(path)) as blocking:
                for wrong in (blocking, object()):
                    with pytest.raises(InvalidJob, match=r"would block|is no connection to"):
                        await queue.enqueue("tag", connection=wrong)
            assert await queue.count() == 0

    asyncio.run(use())


def test_frameworks_are_not_imported_for_it(path: Path) -> None:
    program = f"""
        import sqlite3, sys
        from supervisor import Queue
        queue = Queue("sqlite:///{path}")
        with sqlite3.connect({str(path)!r}) as connection:
            queue.enqueue("tag", connection=connection)
        try:
            queue.enqueue("tag", connection=object())
        except ValueError:
            pass
        print({{"sqlalchemy", "django", "peewee", "aiosqlite", "asyncio"}} & set(sys.modules))
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "set()"


def test_a_connection_of_the_other_kind_is_refused_with_what_to_do(queue: Queue, url: str, path: Path) -> None:
    aiosqlite = pytest.importorskip("aiosqlite")
    sqlalchemy = pytest.importorskip("sqlalchemy")
    from sqlalchemy import orm
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    async def use() -> None:
        engine = create_async_engine(url.replace(":", "+aiosqlite:", 1))
        many, closed = AsyncQueue.of(queue), aiosqlite.connect(path)
        for call in (
            many.enqueue("tag", connection=closed),
            noted.options(queue=queue, connection=closed).aenqueue(""),
        ):
            with pytest.raises(ValueError, match="Connection closed"):
                await call
        async with aiosqlite.connect(path) as own, engine.connect() as other, AsyncSession(engine) as session:
            for wrong in (own, other, session):
                with pytest.raises(InvalidJob, match="is asynchronous; use AsyncQueue"):
                    queue.enqueue("tag", connection=wrong)
            await session.run_sync(lambda one: queue.enqueue("tag", connection=one))
            await session.commit()
        with pytest.raises(InvalidJob, match="has no transaction of its own"):
            await many.enqueue("tag", connection=engine)
        await engine.dispose()
        await many.close()

    asyncio.run(use())
    engine = sqlalchemy.create_engine(url)
    for wrong in (engine, orm.sessionmaker(engine)):
        with pytest.raises(InvalidJob, match="has no transaction of its own; give the session or connection"):
            queue.enqueue("tag", connection=wrong)
    assert queue.count() == 1


class Held:
    """Middleware that waits until it is told to go on."""

    def __init__(self) -> None:
        self.there, self.go = threading.Event(), threading.Event()

    def on_enqueue(self, job: object) -> None:
        self.there.set()
        assert self.go.wait(20)


@pytest.mark.parametrize("begun", [False, True])
def test_after_a_cancellation_nothing_more_happens_on_a_connection_of_aiosqlite(
    queue: Queue, url: str, path: Path, begun: bool
) -> None:
    """A call that has not begun is not made; one that has is over when the cancellation arrives."""
    aiosqlite = pytest.importorskip("aiosqlite")

    async def use() -> None:
        held, busy = Held(), threading.Event()
        async with AsyncQueue(url, middleware=[held]) as many, aiosqlite.connect(path) as own:
            earlier = asyncio.create_task(own._execute(busy.wait))
            request = asyncio.create_task(many.enqueue("tag", connection=own))
            if begun:
                busy.set()
                assert await asyncio.to_thread(held.there.wait, 20)
            for _ in range(5):
                await asyncio.sleep(0)
            request.cancel()
            for _ in range(5):
                await asyncio.sleep(0)
            assert not request.done()
            held.go.set()
            busy.set()
            with pytest.raises(asyncio.CancelledError):
                await request
            await earlier
            assert own.in_transaction == begun
            await (own.rollback() if begun else own.commit())

    asyncio.run(use())
    assert queue.count() == 0


def test_savepoints_of_peewee(queue: Queue, path: Path) -> None:
    peewee = pytest.importorskip("peewee")
    with pytest.raises(InvalidJob):
        queue.enqueue("tag", connection=peewee.DatabaseProxy())
    database = peewee.SqliteDatabase(path)
    with contextlib.suppress(ZeroDivisionError), database.atomic():
        queue.enqueue("tag", connection=database)
        raise ZeroDivisionError
    assert queue.count() == 0
    with database.atomic() as outer:
        with database.atomic() as inner:
            queue.enqueue("tag", connection=database)
            inner.rollback()
        queue.enqueue("other", connection=database)
        outer.commit()
    assert [job.type for job in queue.jobs()] == ["other"]
    database.close()


DJANGO = """
import django, json, sys
from django.conf import settings
url, default = sys.argv[1], json.loads(sys.argv[2])
settings.configure(
    DATABASES={"default": default, "none": {"ENGINE": "django.db.backends.dummy", "NAME": "none"}}, USE_TZ=True
)
django.setup()
from django.db import connection, connections, transaction
from supervisor import InvalidJob, Queue
queue = Queue(url)
queue.create_tables()
first = queue.enqueue("first", connection=connection)  # Django has not connected yet, and commits by itself
assert queue.count() == 1
queue.cancel(first)
queue.delete(first)
for own in (connection, connections["default"]):
    try:
        with transaction.atomic():
            queue.enqueue("tag", connection=own)
            queue.enqueue_many("tag", [1, 2], connection=own)
            assert queue.count() == 0
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert queue.count() == 0
with transaction.atomic():
    queue.enqueue("tag", connection=connection)
    try:
        with transaction.atomic():
            queue.enqueue("inner", connection=connection)
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
assert [job.type for job in queue.jobs()] == ["tag"]
queue.enqueue_many("tag", [1, 2], connection=connection)  # in autocommit
assert queue.count() == 3
try:
    queue.enqueue("tag", connection=connections["none"])
except InvalidJob as error:
    print(error)
"""


def run_django(url: str, **default: object) -> str:
    pytest.importorskip("django")
    default["ENGINE"] = f"django.db.backends.{default['ENGINE']}"
    command = [sys.executable, "-c", DJANGO, url, json.dumps(default)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_djangos_connection(url: str, path: Path) -> None:
    said = run_django(url, ENGINE="sqlite3", NAME=str(path))
    assert said.startswith("connection: this django.DatabaseWrapper is no connection to an SQLite file; pass a sqlite3")


def test_djangos_connection_to_a_server(server: str) -> None:
    at = urlsplit(server)
    known = {"USER": at.username, "PASSWORD": at.password or "", "HOST": at.hostname, "PORT": at.port}
    said = run_django(server, ENGINE="postgresql", NAME=at.path[1:], **known)
    assert "is no connection to PostgreSQL; pass a psycopg" in said


def test_a_connection_to_another_database_is_refused_before_anything_is_made(
    queue: Queue, path: Path, tmp_path: Path
) -> None:
    other, link = tmp_path / "other.db", tmp_path / "link.db"
    link.symlink_to(path)
    sentence = f"^connection: its database is {other}, and that of the queue is {path}$"
    for begun in (False, True):
        with contextlib.closing(sqlite3.connect(other, isolation_level=None)) as own:
            own.text_factory = bytes
            own.execute("ATTACH ? AS ours", (str(path),))  # by name alone, the tables would be found there
            own.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
            if begun:
                own.execute("BEGIN")
            for call in (queue.enqueue, lambda *given, **more: queue.job(1, **more)):
                with pytest.raises(InvalidJob, match=sentence):
                    call("tag", connection=own)
            assert own.execute("SELECT name FROM main.sqlite_master").fetchall() == [(b"orders",)]
    with contextlib.closing(sqlite3.connect(link)) as own:  # another name of the same file
        own.execute("ATTACH ? AS others", (str(other),))
        queue.enqueue("tag", connection=own)
        own.commit()
    assert queue.count() == 1
