"""The desk: who answers questions to the database, and what is left when it closes."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from supervisor.admin.store_executor import StoreExecutor
from supervisor.domain.errors import StoreError
from supervisor.engine import open_engine
from supervisor.store.base import Engine, Operations
from tests.stopwatch import Stopwatch


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    made = open_engine(f"sqlite:///{tmp_path}/jobs.db")
    made.database.migrate()
    return made


def open_files(folder: Path) -> list[str]:
    """What this process has open in a folder."""
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            target = str(entry.readlink())
        except OSError:
            continue
        if target.startswith(f"{folder}/"):
            found.append(target)
    return found


def test_a_closed_desk_leaves_no_connection_and_no_thread(engine: Engine, tmp_path: Path) -> None:
    before = threading.active_count()
    desk = StoreExecutor(engine, threads=3)
    meet = threading.Barrier(3)

    async def ask() -> None:
        await asyncio.gather(*(desk.ask(lambda operations: meet.wait(10)) for _ in range(3)))
        with pytest.raises(StoreError):
            await desk.ask(failing)

    asyncio.run(ask())
    assert open_files(tmp_path)

    desk.close()

    assert open_files(tmp_path) == []
    deadline = time.monotonic() + 10
    while threading.active_count() > before:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def failing(operations: Operations) -> None:
    raise StoreError("it is gone")


def test_questions_one_after_another_share_a_connection_also_after_one_that_fails(engine: Engine) -> None:
    desk = StoreExecutor(engine, threads=1)

    async def ask() -> set[int]:
        found = {await desk.ask(id) for _ in range(3)}
        with pytest.raises(ZeroDivisionError):
            await desk.ask(lambda operations: 1 // 0)
        return found | {await desk.ask(id)}

    assert len(asyncio.run(ask())) == 1
    desk.close()


def test_a_question_that_hangs_holds_up_neither_the_others_nor_the_end(engine: Engine) -> None:
    desk = StoreExecutor(engine, threads=2)
    leave = threading.Event()

    async def ask() -> int:
        hanging = asyncio.ensure_future(desk.ask(lambda operations: leave.wait(60)))
        answers = [await desk.ask(lambda operations: operations.statistics.log_size()) for _ in range(5)]
        watch = Stopwatch()
        desk.close()
        assert watch.seconds() < 5
        with pytest.raises(StoreError):
            await desk.ask(lambda operations: operations.statistics.log_size())
        leave.set()
        await hanging
        return len(answers)

    assert asyncio.run(ask()) == 5
