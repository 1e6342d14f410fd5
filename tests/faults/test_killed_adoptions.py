"""An adoption that is killed, or fails, at any of its statements leaves the old table or the new one."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.domain.errors import StoreBusy, StoreError, StoreUnavailable
from supervisor.engine import open_engine
from supervisor.store.base import AdoptOptions
from tests.armed import armed, in_a_child
from tests.samples import sampled
from tests.store.sqlite.adoptable import SHAPES, Shape

ROWS = 20
PLACES = ["adopt.before", "adopt"]
OTHERS = ["begin.before", "begin", "commit.before", "commit"]
SOME = pytest.param("monitoring", 13, id="monitoring-some")  # it has the most triggers
# Every statement of all five in `make long`.
EACH = [SOME, *(pytest.param(name, 1, id=name, marks=[pytest.mark.long, pytest.mark.timeout(600)]) for name in SHAPES)]


class Tables:
    """A database of this shape, and its contents before and after an adoption."""

    def __init__(self, shape: Shape, folder: Path) -> None:
        self.shape, self.folder = shape, folder
        self.options: AdoptOptions = shape.options
        folder.mkdir(exist_ok=True)
        shape.make(folder / "app.db", ROWS)
        self.before = contents(folder / "app.db")
        copy = self.copy("whole")
        self.adopt(copy)
        self.after = contents(copy)

    def copy(self, name: str) -> Path:
        target = self.folder / name
        target.mkdir()
        return Path(shutil.copy(self.folder / "app.db", target))

    def adopt(self, database: Path) -> None:
        open_engine(f"sqlite:///{database}").database.adopt(self.options)


@pytest.fixture
def tables(shape: str, tmp_path: Path) -> Tables:
    return Tables(SHAPES[shape], tmp_path / "tables")


def contents(database: Path) -> list[object]:
    """Definitions and rows, without what differs from one adoption to the next: times of now, and the epoch."""
    with closing(sqlite3.connect(database)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        definitions = raw.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY name").fetchall()
        found: list[object] = [*definitions]
        for table in {name for kind, name, _ in definitions if kind == "table" and name in ("jobs", "job_queue")}:
            columns = [row[1] for row in raw.execute(f"PRAGMA table_info({table})")]
            settled = [f'"{name}"' for name in columns if name not in ("scheduled_at", "completed_at")]
            found += raw.execute(f"SELECT {', '.join(settled)} FROM {table} ORDER BY 1").fetchall()
        return found


def failure(work: Callable[[], None]) -> StoreError | None:
    try:
        work()
    except StoreError as error:
        return error
    return None


def left_behind(database: Path) -> list[str]:
    """Files that a failed adoption should not have left."""
    return [file.name for file in database.parent.iterdir() if "partial" in file.name or "before-adopt" in file.name]


@pytest.mark.fault(26)
@pytest.mark.parametrize(("shape", "step"), EACH)
@pytest.mark.parametrize("place", PLACES)
def test_an_adoption_killed_at_any_statement_leaves_the_old_table_or_the_new_one(
    tables: Tables, step: int, place: str
) -> None:
    assert tables.before != tables.after
    number = 1 - step
    while True:
        number += step
        database = tables.copy(f"{number}")
        if not in_a_child(lambda database=database: tables.adopt(database), f"{place}=kill@{number}"):  # type: ignore[misc]
            break
        assert contents(database) == tables.before, number  # the commit is not among these
        if number % 10 == 1:  # whoever comes next completes it
            tables.adopt(database)
            assert contents(database) == tables.after, number
        shutil.rmtree(database.parent)
    assert contents(database) == tables.after
    assert number > 30


@pytest.mark.fault(26)
@pytest.mark.parametrize("shape", sampled(sorted(SHAPES, key="monitoring".__ne__), quick=1))
@pytest.mark.parametrize("place", OTHERS)
def test_an_adoption_killed_around_its_transaction_leaves_the_old_table_or_the_new_one(
    tables: Tables, place: str
) -> None:
    database = tables.copy("killed")
    assert in_a_child(lambda: tables.adopt(database), f"{place}=kill")
    assert contents(database) == (tables.after if place == "commit" else tables.before)


@pytest.mark.fault(26)
@pytest.mark.parametrize(("shape", "step"), EACH)
@pytest.mark.parametrize(("kind", "error"), [("busy", StoreBusy), ("full", StoreUnavailable)])
def test_an_adoption_that_fails_at_any_statement_changes_nothing_and_can_be_tried_again(
    tables: Tables, step: int, kind: str, error: type[StoreError]
) -> None:
    """At one copy: nothing is left behind, so the next attempt begins where this one did."""
    database = tables.copy("failing")
    for place in [*PLACES, "begin.before", "begin", "commit.before"]:
        number = 1 - step
        while True:
            number += step
            with armed(f"{place}=fail:{kind}@{number}"):
                raised = failure(lambda database=database: tables.adopt(database))  # type: ignore[misc]
            if raised is None:
                break
            assert isinstance(raised, error), (place, number, raised)
            assert contents(database) == tables.before, (place, number)
            assert left_behind(database) == [], (place, number)
        assert contents(database) == tables.after
        assert number > (30 if "adopt" in place else 1)
        shutil.rmtree(database.parent)
        database = tables.copy("failing")


def test_the_copy_stays_if_an_adoption_is_committed_and_the_answer_is_lost(tmp_path: Path) -> None:
    tables = Tables(SHAPES["artifex"], tmp_path / "tables")
    database = tables.copy("lost")
    with armed("commit=fail:error"), pytest.raises(StoreError):
        tables.adopt(database)
    assert contents(database) == tables.after
    [backup] = left_behind(database)
    assert contents(database.with_name(backup)) == tables.before
