"""A job in the transaction of the application's own framework exists if and only if that transaction commits."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncQueue, InvalidJob, JobNotFound, Queue, task

Enqueue = Callable[[object], Any]


@task("note")
def noted(text: str) -> None: ...


def test_a_wrong_object_gets_one_sentence(queue: Queue) -> None:
    for wrong in (object(), "sqlite:///app.db", queue, 5):
        with pytest.raises(InvalidJob) as refused:
            queue.enqueue("tag", connection=wrong)
        assert refused.value.field == "connection"
        assert str(refused.value).startswith(f"connection: a {type(wrong).__module__.split('.')[0]}.")
        assert "give SQLite's: a sqlite3.Connection, SQLAlchemy's Session" in str(refused.value)
        assert "\n" not in str(refused.value)
    assert queue.count() == 0


def test_a_blocking_connection_is_refused_by_an_event_loop(url: str, path: Path) -> None:
    async def use() -> None:
        async with AsyncQueue(url) as queue:
            with contextlib.closing(sqlite3.connect(path)) as blocking:
                for wrong in (blocking, object()):
                    with pytest.raises(InvalidJob, match=r"would block|can be used here"):
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


def test_aiosqlite(queue: Queue, url: str, path: Path) -> None:
    aiosqlite = pytest.importorskip("aiosqlite")

    async def use() -> None:
        async with AsyncQueue(url) as many:
            for commit in (False, True):
                async with aiosqlite.connect(path) as own:
                    await own.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)")
                    await own.execute("INSERT INTO orders DEFAULT VALUES")
                    await many.enqueue("tag", connection=own)
                    await many.enqueue_many("tag", [1, 2], connection=own)
                    assert (await many.put("tag", connection=own))[1]
                    await noted.options(queue=queue, connection=own).aenqueue("a")
                    with pytest.raises(InvalidJob, match="is asynchronous"):
                        queue.enqueue("tag", connection=own)
                    assert await many.count() == 0
                    await (own.commit() if commit else own.rollback())
                assert await many.count() == (5 if commit else 0)
            closed = aiosqlite.connect(path)
            with pytest.raises(ValueError, match="Connection closed"):
                await many.enqueue("tag", connection=closed)
            with pytest.raises(ValueError, match="Connection closed"):
                await noted.options(queue=queue, connection=closed).aenqueue("a")

    asyncio.run(use())


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


@pytest.mark.parametrize("proxy", [False, True])
def test_peewee(queue: Queue, path: Path, proxy: bool) -> None:
    peewee = pytest.importorskip("peewee")
    database = peewee.SqliteDatabase(path)
    own = peewee.DatabaseProxy() if proxy else database
    if proxy:
        with pytest.raises(InvalidJob):
            queue.enqueue("tag", connection=own)
        own.initialize(database)
    with contextlib.suppress(ZeroDivisionError), database.atomic():
        queue.enqueue("tag", connection=own)
        queue.enqueue_many("tag", [1, 2], connection=own)
        raise ZeroDivisionError
    assert queue.count() == 0
    with database.atomic():
        queue.enqueue("tag", connection=own)
        assert queue.count() == 0
    assert queue.count() == 1
    with database.atomic() as outer:
        with database.atomic() as inner:
            queue.enqueue("tag", connection=own)
            inner.rollback()
        queue.enqueue("other", connection=own)
        outer.commit()
    assert [job.type for job in queue.jobs()] == ["other", "tag"]
    database.close()


DJANGO = """
import django
from django.conf import settings
settings.configure(
    DATABASES={{
        "default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": {path!r}}},
        "none": {{"ENGINE": "django.db.backends.dummy", "NAME": "none"}},
    }},
    USE_TZ=True,
)
django.setup()
from django.db import connection, connections, transaction
from supervisor import InvalidJob, Queue
queue = Queue("sqlite:///" + {path!r})
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


def test_djangos_connection(queue: Queue, path: Path) -> None:
    pytest.importorskip("django")
    program = DJANGO.format(path=str(path))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("connection: a django.DatabaseWrapper is none that can be used here; give SQLite's")


def test_a_job_of_the_open_transaction_is_seen_with_its_connection(queue: Queue, path: Path) -> None:
    queue.create_tables()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        job_id = queue.enqueue("tag", connection=connection)
        assert queue.job(job_id, connection=connection).type == "tag"
        with pytest.raises(JobNotFound):
            queue.job(job_id)
        connection.rollback()
        with pytest.raises(JobNotFound):
            queue.job(job_id, connection=connection)


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
