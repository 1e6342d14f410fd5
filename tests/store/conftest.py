"""A desk on each of the engines, which must keep every promise of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.store.kit import ENGINES, Desk


@pytest.fixture(params=sorted(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Engine:
    return open_engine(ENGINES[request.param](tmp_path))


@pytest.fixture
def desk(engine: Engine) -> Iterator[Desk]:
    desk = Desk.at(engine)
    yield desk
    desk.close()
