"""A queue on a new database, and another program that uses the same file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
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
