"""A desk on each of the engines, which must keep every promise of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.postgres_server import Databases
from tests.store.kit import ENGINES, Desk, emptied


@pytest.fixture(scope="session")
def kept_database(shared_postgres: str) -> Iterator[str]:
    """The URL of a database of a PostgreSQL server that the tests of a process use one after the other: to empty it
    takes a tenth of the time that another one would take.
    """
    server = Databases(shared_postgres)
    yield server.fresh_database()
    server.drop_all()


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest) -> Callable[[str, Path], str]:
    """From an engine and a folder to the URL of an empty database."""

    def fresh(name: str, folder: Path) -> str:
        if name == "sqlite":
            return f"sqlite:///{folder}/jobs.db"
        return emptied(request.getfixturevalue("kept_database"))

    return fresh


@pytest.fixture(params=ENGINES)
def engine(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fresh_url: Callable[[str, Path], str],
) -> Engine:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return open_engine(fresh_url(request.param, tmp_path))


@pytest.fixture
def desk(engine: Engine) -> Iterator[Desk]:
    desk = Desk.at(engine)
    yield desk
    desk.close()
