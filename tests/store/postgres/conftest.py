"""A desk on a database of a server, and a plain connection to it such as any program may have."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.postgres_server import Databases


@pytest.fixture
def engine(postgres: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return open_engine(postgres.fresh_database())


@pytest.fixture
def foreign(desk: object, engine: Engine) -> Iterator[psycopg.Connection]:
    """Another program's connection, in autocommit."""
    with psycopg.connect(engine.url, autocommit=True) as connection:
        yield connection
