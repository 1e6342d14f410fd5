"""A desk on an SQLite file, and a plain connection to that file such as any program may have."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Engine


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return open_engine(f"sqlite:///{tmp_path}/jobs.db")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
def foreign(desk: object, path: Path) -> Iterator[sqlite3.Connection]:
    """Another program's connection, in autocommit."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=10)
    yield connection
    connection.close()
