"""A queue on a new database, and another program that uses the same file."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor import Queue
from tests.fresh import make_tables


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def queue(url: str, path: Path) -> Iterator[Queue]:
    make_tables(path)
    with Queue(url) as queue:
        yield queue


@pytest.fixture
def other(queue: Queue, path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection; each statement is committed."""
    with contextlib.closing(
        sqlite3.connect(path, isolation_level=None, timeout=20, check_same_thread=False)
    ) as connection:
        yield connection


def run(other: sqlite3.Connection, job_id: int) -> None:
    """A foreign worker claims it."""
    other.execute("UPDATE jobs SET status = 'running' WHERE id = ?", (job_id,))


def end(other: sqlite3.Connection, job_id: int, status: str = "done") -> None:
    run(other, job_id)
    result, error = ("[1]", None) if status == "done" else (None, "no")
    other.execute(
        "UPDATE jobs SET status = ?, result = ?, last_error = ? WHERE id = ?", (status, result, error, job_id)
    )


def quiet_fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on: that is the subject
        return os.fork()


def forked(work: Callable[[], bool]) -> int:
    """The pid of a child that exits with 0 if the work returns True."""
    child = quiet_fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            code = 0 if work() else 2
        finally:
            os._exit(code)
    return child
