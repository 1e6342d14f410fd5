"""What pruning has left free goes back to the file system, from a file that we have made."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from supervisor.engine import open_engine
from supervisor.store.sqlite.maintenance import _AT_ONCE, _KEPT, FreePages, truncate_log


@pytest.mark.parametrize("foreign", [False, True])
def test_free_pages_are_given_back_in_steps(tmp_path: Path, foreign: bool) -> None:
    path = tmp_path / "app.db"
    if foreign:  # as an application makes its file
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute("CREATE TABLE theirs (x)")
    engine = open_engine(f"sqlite:///{path}")
    engine.database.migrate()
    with contextlib.closing(engine.maintenance()) as store:
        with contextlib.closing(sqlite3.connect(path)) as raw:
            raw.execute("CREATE TABLE mine (x)")
            raw.execute("INSERT INTO mine VALUES (zeroblob(60000000))")
            raw.execute("DELETE FROM mine")
            raw.commit()
        duty = FreePages(store._connection)  # type: ignore[attr-defined]
        steps = []
        while (given_back := duty.run(0.0).done) > 0:
            steps.append(given_back)
        truncate_log(store._connection)  # type: ignore[attr-defined]

    assert bool(steps) is not foreign
    assert all(pages <= _AT_ONCE for pages in steps)
    assert (path.stat().st_size < (_KEPT + 500) * 4096 * 4 / 3) is not foreign
