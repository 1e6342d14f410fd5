"""Killed inside a write transaction, whatever it was writing: nothing of it stands, and the next writer goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Engine
from supervisor.system.failpoints import VARIABLE
from tests.faults.fatal import CASES, prepare, write
from tests.faults.test_killed_adoptions import killed
from tests.stopwatch import Stopwatch
from tests.store.kit import Desk


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_engine(f"sqlite:///{tmp_path}/jobs.db")


def dump(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return list(connection.iterdump())


@pytest.mark.fault(2)
@pytest.mark.parametrize("place", CASES)
def test_a_process_killed_inside_a_write_transaction_leaves_nothing_of_it(
    engine: Engine, tmp_path: Path, place: str
) -> None:
    desk = Desk.at(engine)
    prepare(desk)
    desk.close()  # a child must not know of our connections
    before = dump(tmp_path / "jobs.db")
    statement, at, number = place.partition("@")
    assert killed(lambda: write(place, engine.url), f"program:{statement}=kill{at}{number}")

    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")  # raises if anything were still locked
        other.execute("ROLLBACK")
        assert other.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert dump(tmp_path / "jobs.db") == before
    desk = Desk.at(engine)
    watch = Stopwatch()
    CASES[place](desk)
    assert watch.seconds() < 0.5  # nor does our own next writer wait for the dead
    assert dump(tmp_path / "jobs.db") != before
    desk.close()


@pytest.mark.fault(2)
def test_a_process_killed_while_it_makes_the_tables_leaves_none(engine: Engine, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "supervisor", "migrate", "--database", engine.url],
        env=os.environ | {VARIABLE: "program:set_meta=kill@2"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr

    assert dump(tmp_path / "jobs.db") == ["BEGIN TRANSACTION;", "COMMIT;"]
    assert engine.database.migrate()
