"""Jobs that share a transaction: what becomes of the others when one of them, or its commit, fails."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncQueue, Conflict, Queue, StoreError
from supervisor.client import lanes
from supervisor.domain.job import NewJob
from supervisor.engine import open_engine
from supervisor.store.sqlite.connection import Transaction

RAISED = [StopIteration, StopAsyncIteration, GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError]


class Bad(dict[str, object]):
    """A payload whose own code raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(a=1)
        self.error = error

    def items(self) -> Any:
        raise self.error


async def raised(call: Any) -> BaseException:
    """Caught in its task: some of these would end the event loop."""

    async def caught() -> BaseException:
        try:
            await call
        except BaseException as error:
            return error
        raise AssertionError("nothing was raised")

    return await asyncio.wait_for(caught(), 60)


@pytest.mark.parametrize("kind", RAISED)
@pytest.mark.parametrize("name", ["enqueue", "enqueue_many", "in a transaction"])
def test_whatever_a_call_raises_reaches_who_awaits_it(
    url: str, path: Path, kind: type[BaseException], name: str
) -> None:
    aiosqlite = pytest.importorskip("aiosqlite")
    if name == "in a transaction" and not issubclass(kind, Exception):
        pytest.skip("the thread is aiosqlite's")

    async def use() -> None:
        async with AsyncQueue(url) as queue, aiosqlite.connect(path) as own:
            await queue.create_tables()
            bad = Bad(kind("odd"))
            call: Any = {
                "enqueue": lambda: queue.enqueue("tag", bad),
                "enqueue_many": lambda: queue.enqueue_many("tag", [bad]),
                "in a transaction": lambda: queue.enqueue("tag", bad, connection=own),
            }[name]
            found = await raised(call())
            if issubclass(kind, (StopIteration, GeneratorExit)):  # a coroutine would take them for its own end
                assert (type(found), str(found)) == (RuntimeError, f"the call raised {kind.__name__}")
                assert isinstance(found.__cause__, kind)
            else:
                assert isinstance(found, kind)
            assert isinstance(await asyncio.wait_for(queue.enqueue("tag"), 60), int)

    asyncio.run(use())


def test_an_error_that_cannot_be_made_again_is_told_to_each_all_the_same() -> None:
    class Odd(Exception):
        def __new__(cls, *args: object) -> Odd:
            if args:
                raise TypeError("no arguments")
            return super().__new__(cls)

    error = Odd()
    error.args = ("odd",)

    def failing(jobs: list[NewJob]) -> Any:
        raise error

    lane = lanes.Lane("writer")
    held: Future[None] = Future()
    waiting = lane.call(held.result)  # until all of them wait behind it
    futures = [lane.insert(lambda: NewJob("tag", "{}"), failing) for _ in range(3)]
    held.set_result(None)
    assert [future.exception(60) for future in futures] == [error] * 3
    assert waiting.done()
    lane.end().result(60)


FULL = """
import json, resource, sys
from pathlib import Path
from supervisor.domain.job import NewJob
from supervisor.engine import open_engine

path = Path(sys.argv[1])
producer = open_engine(f"sqlite:///{path}").producer(create=False)
producer.put(NewJob("tag", "{}"))  # its log is there
size = Path(f"{path}-wal").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300_000,) * 2)
jobs = [NewJob("small", "1"), NewJob("large", json.dumps("x" * 600_000)), NewJob("small", "2")]
print([type(answer).__name__ for answer in producer.put_each(jobs)])
"""


def test_a_large_job_for_which_the_disk_has_no_room_does_not_fail_its_neighbours(queue: Queue, path: Path) -> None:
    ran = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout.strip() == "['tuple', 'WriteFailed', 'tuple']"
    assert [(job.type, job.payload) for job in queue.jobs()] == [("small", 2), ("small", 1), ("tag", {})]


@pytest.mark.parametrize(
    ("code", "alone"),
    [("SQLITE_FULL", True), ("SQLITE_IOERR_WRITE", True), ("SQLITE_IOERR_FSYNC", False), ("SQLITE_IOERR", False)],
)
def test_only_what_was_certainly_not_committed_is_inserted_again(
    url: str, monkeypatch: pytest.MonkeyPatch, code: str, alone: bool
) -> None:
    producer = open_engine(url).producer(create=True)
    leave, failed = Transaction.__exit__, []

    def failing(transaction: Transaction, kind: Any, error: Any, stack: Any) -> None:
        if not failed:
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = getattr(sqlite3, code)
            failed.append(error)
        leave(transaction, kind, error, stack)

    monkeypatch.setattr(Transaction, "__exit__", failing)
    jobs = [NewJob("tag", "1"), NewJob("tag", "2")]
    with contextlib.closing(producer):
        if alone:
            assert [type(answer) for answer in producer.put_each(jobs)] == [tuple, tuple]
        else:
            with pytest.raises(StoreError):
                producer.put_each(jobs)


@pytest.mark.parametrize(
    "rule",
    [
        "CREATE TRIGGER ignore BEFORE INSERT ON jobs BEGIN SELECT RAISE(IGNORE); END",
        "CREATE UNIQUE INDEX one ON jobs (type)",
    ],
)
def test_a_job_that_a_rule_of_the_application_suppresses_is_refused(
    queue: Queue, path: Path, other: sqlite3.Connection, rule: str
) -> None:
    if "INDEX" in rule:
        queue.enqueue("tag")
    other.execute(rule)
    with contextlib.closing(sqlite3.connect(path)) as own:
        calls = (
            lambda: queue.enqueue("tag"),
            lambda: queue.enqueue("tag", unique_key="k"),
            lambda: queue.enqueue("tag", connection=own),
            lambda: asyncio.run(AsyncQueue.of(queue).enqueue("tag")),
        )
        for call in calls:
            with pytest.raises(Conflict) as refused:
                call()
            assert "breaks a UNIQUE rule of the jobs table, or a trigger refuses it" in str(refused.value)
            own.rollback()
