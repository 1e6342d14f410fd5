"""The engines that must keep every promise of this folder. Another engine is one more entry here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.store.kit import Desk

ENGINES: dict[str, Callable[[Path], str]] = {"sqlite": lambda folder: f"sqlite:///{folder}/jobs.db"}


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return open_engine(ENGINES[request.param](tmp_path))


@pytest.fixture
def desk(engine: Engine) -> Iterator[Desk]:
    desk = Desk.at(engine)
    yield desk
    desk.close()
