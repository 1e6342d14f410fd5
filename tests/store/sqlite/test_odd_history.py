"""Rows of the history that other programs have written, and triggers of theirs."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from supervisor.domain.errors import StoreError
from supervisor.domain.history import DAY, HOUR, Minute
from supervisor.system.counters import Row, shared
from tests.store.kit import Desk
from tests.store.test_history import HOURS, LATER, START, historian, ran, tidy, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tallies"


@pytest.fixture
def row(path: Path) -> Row:
    return shared(path, 1)


@contextlib.contextmanager
def foreign(desk: Desk) -> Iterator[sqlite3.Connection]:
    path = desk.engine.url.removeprefix("sqlite:///")
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def test_rows_of_other_programs_hold_nobody_up(desk: Desk, path: Path) -> None:
    duty = historian(desk, path)
    odd = [
        (HOURS + 60, "tag", 2**63 - 1, 2**63 - 1, -5, 2**63 - 1, 9e999, -9e999),
        (HOURS + 61.5, "tag", 2**63 - 1, -(2**63), 3, 0, -9e999, 9e999),
        (HOURS, "tag", 2**63 - 1, 1, 0, 0, -9e999, 0.0),
        (HOURS + 7, b"b\xff", 1, 1, 1, 1, 1.0, 1.0),
        (9e999, "future", 1, 1, 1, 1, 1.0, 1.0),
        (-9e999, "past", 1, 1, 1, 1, 1.0, 1.0),
        (-5400.0, "past", 1, 1, 1, 1, 1.0, 1.0),
    ]
    with foreign(desk) as connection:
        for values in odd:
            connection.execute("INSERT INTO job_history VALUES (?, CAST(? AS TEXT), ?, ?, ?, ?, ?, ?)", values)

    assert tidy(duty, LATER) == 2
    steps = desk.operations.history.added_up(HOURS, LATER, HOUR)
    assert [(row.at, row.done) for row in steps] == [(HOURS, 1), (HOURS, 9_000_000_000_000_000)]
    assert [row.at for row in desk.operations.history.minutes(-9e999)] == [-7200, HOURS, HOURS]


@pytest.mark.fault(64)
def test_a_minute_is_written_though_nothing_can_be_rolled_up(desk: Desk, path: Path, row: Row) -> None:
    duty = historian(desk, path)
    write(desk, [Minute(HOURS - 2 * DAY + 60, "old", done=1)])
    with foreign(desk) as connection:
        connection.execute("CREATE TRIGGER no BEFORE DELETE ON job_history BEGIN SELECT RAISE(ABORT, 'it stays'); END")
        for minute in range(1, 4):
            ran(row)
            for _ in range(3):  # as often as the scheduler tries it
                with pytest.raises(StoreError, match="it stays"):
                    duty.run(START + HOUR + 60 * minute)
        kept = [(row.type, row.done) for row in desk.operations.history.minutes(0)]
        assert kept == [("old", 1), *[("tag", 1)] * 3]
        connection.execute("DROP TRIGGER no")

    assert tidy(duty, START + HOUR + 200) == 1
    assert desk.operations.history.minutes(0)[0].at == HOURS - 2 * DAY
