"""Tables put together at random from what applications do: each is refused with a reason, or taken over whole."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.job import Status
from supervisor.domain.settlement import done
from supervisor.engine import open_engine
from supervisor.store.base import AdoptOptions, AdoptReport
from supervisor.store.sqlite.adopt.table import quoted
from tests.store.kit import Desk

KEYS = (
    "id INTEGER PRIMARY KEY",
    "job_id INTEGER PRIMARY KEY AUTOINCREMENT",
    "id INT PRIMARY KEY",
    "ID TEXT PRIMARY KEY",
    "uuid TEXT NOT NULL PRIMARY KEY DEFAULT (lower(hex(randomblob(8))))",
)
WORDS = (
    ("pending", "running", "done", "failed"),
    ("QUEUED", "CLAIMED", "DONE", "FAILED"),
    ("pending", "processing", "completed", "error"),
    ("new", "in progress", "o'k", "dead"),
    ("0", "1", "2", "3"),
)
# What no proposal knows.
GIVEN = {"o'k": "done", "0": "pending", "1": "running", "2": "done", "3": "failed"}
TIMES: tuple[Callable[[random.Random], Any], ...] = (
    lambda r: f"2024-05-01 10:00:{r.randrange(60):02}",
    lambda r: f"2024-05-01T10:00:00.{r.randrange(1000):03}Z",
    lambda r: "2024-05-01T10:00:00+0200",
    lambda r: 1714557600000 + r.randrange(1000),
    lambda r: 1714557600 + r.random(),
    lambda r: r.choice(["", "2024-05-01"]),
)
DECLARED = ("TEXT", "DATETIME", "DATETIME DEFAULT CURRENT_TIMESTAMP", "INTEGER", "TEXT DEFAULT (datetime('now'))", "")


@dataclass
class Table:
    """A table of an application, made at random."""

    name: str
    key: str
    column: dict[str, str]  # of type, payload and status
    words: tuple[str, ...]
    names: list[str]
    rows: list[tuple[Any, ...]]

    @classmethod
    def make(cls, raw: sqlite3.Connection, r: random.Random) -> Table:
        key, words = r.choice(KEYS), r.choice(WORDS)
        column = {
            "type": r.choice(["type", "Type", "job_type"]),
            "payload": r.choice(["payload", "data", "ARGS"]),
            "status": r.choice(["status", "STATUS", "state"]),
        }
        listed = ", ".join("'" + word.replace("'", "''") + "'" for word in words)
        check = r.choice(["", f"CHECK ({column['status']} IN ({listed}))"])
        definitions = [
            f"{column['type']} TEXT {r.choice(['NOT NULL', ''])}",
            f"{column['payload']} {r.choice(['TEXT', 'JSON NOT NULL', 'BLOB DEFAULT NULL'])}",
            f"{column['status']} TEXT NOT NULL DEFAULT {listed.split(', ')[0]} {check}",
        ]
        fill: dict[str, Callable[[], Any]] = {}

        def maybe(name: str, declared: str, value: Callable[[], Any]) -> None:
            if r.random() < 0.4:
                name = r.choice([name, name, name.upper()])
                definitions.append(f"{quoted(name)} {declared}")
                fill[name] = lambda: None if r.random() < 0.3 else value()

        form, declared = r.choice(TIMES), r.choice(DECLARED)
        for name in (
            *(r.choice(["scheduled_at", "scheduled_for", "run_at"]), "created_at", "updated_at"),
            *(r.choice(["completed_at", "finished_at"]), "started_at", "locked_at"),
        ):
            maybe(name, declared, lambda: form(r))
        maybe("locked_by", "TEXT", lambda: "w1")
        maybe(r.choice(["attempts", "retries"]), "INTEGER DEFAULT 0", lambda: r.randrange(4))
        maybe("max_attempts", "INTEGER DEFAULT 3", lambda: r.randrange(5))
        maybe(r.choice(["error", "last_error"]), "TEXT", lambda: "bo'om")
        maybe("meta", "TEXT", lambda: "m")
        maybe('odd, "name', "TEXT COLLATE NOCASE DEFAULT 'a,b'", lambda: "z")
        r.shuffle(definitions)
        name = r.choice(["jobs", "jobs", "Job Queue"])
        raw.execute(f"CREATE TABLE {quoted(name)} ({', '.join([key, *definitions])})")
        for number in range(r.choice([0, 1, 12])):
            row = {column["type"]: r.choice(["tag", "MY_TYPE"]), column["payload"]: f'{{"n": {number}}}'}
            row[column["status"]] = words[number % 4]
            if "INTEGER" not in key:
                row[key.split()[0]] = number + 1 if " INT " in key else f"u-{number}"  # type: ignore[assignment]
            row.update({name: value() for name, value in fill.items()})
            marks = ", ".join("?" * len(row))
            raw.execute(
                f"INSERT INTO {quoted(name)} ({', '.join(map(quoted, row))}) VALUES ({marks})", list(row.values())
            )
        cursor = raw.execute(f"SELECT * FROM {quoted(name)} ORDER BY rowid")
        return cls(name, key.split()[0], column, words, [each[0] for each in cursor.description], cursor.fetchall())


SOME = [
    pytest.param(range(15), id="some"),
    pytest.param(range(15, 150), id="many", marks=[pytest.mark.long, pytest.mark.timeout(600)]),
]


@pytest.mark.parametrize("seeds", SOME)
def test_a_table_of_any_usual_shape_is_taken_over_whole(tmp_path: Path, seeds: range) -> None:
    for seed in seeds:
        r = random.Random(seed)
        path = tmp_path / f"{seed}.db"
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            table = Table.make(raw, r)
            statuses = {word: GIVEN[word] for word in table.words if word in GIVEN}
            database = open_engine(f"sqlite:///{path}").database
            plan = database.adopt(AdoptOptions(table.name, statuses=statuses), rehearse=True)
            report = database.adopt(AdoptOptions(table.name, statuses=statuses))
            assert report._replace(backup=None) == plan, seed
            assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            raw.execute(f"PRAGMA recursive_triggers = {r.choice(['ON', 'OFF'])}")
            check_rows(raw, table, report)
            check_work(raw, table, path)


def check_rows(raw: sqlite3.Connection, table: Table, report: AdoptReport) -> None:
    """Whatever is not ours as well stands where the plan says, as it was."""
    kept = ", ".join(quoted(column.kept_as) for column in report.columns)
    found = raw.execute(f"SELECT {kept} FROM jobs ORDER BY id").fetchall()
    for before, after in zip(table.rows, found, strict=True):
        for column, was, now in zip(report.columns, before, after, strict=True):
            if column.kept_as.lower() != column.meaning and column.meaning != "status":
                assert now == was, column
    shown = raw.execute(f"SELECT * FROM {quoted(report.view or 'jobs')}")
    assert [each[0] for each in shown.description][: len(table.names)] == table.names
    assert len(shown.fetchall()) == len(table.rows)


def check_work(raw: sqlite3.Connection, table: Table, path: Path) -> None:
    """Our workers get every due job, and none of the application's words takes one from them or stays in the table."""
    pending = raw.execute("SELECT count(*) FROM jobs WHERE status = 'pending' AND scheduled_at < 4e9").fetchone()[0]
    assert pending == sum(table.words.index(row[table.names.index(table.column["status"])]) < 2 for row in table.rows)
    desk = Desk.at(open_engine(f"sqlite:///{path}"))
    try:
        claims = desk.claim(["tag", "MY_TYPE"], 100, now=4e9)
        assert len(claims) == pending
        if table.column["status"].lower() == "status":
            for word in table.words:
                raw.execute("UPDATE jobs SET status = ?", (word,))
        assert desk.settle(*(done(claim, None) for claim in claims), now=4e9) == []
    finally:
        desk.close()
    states = {state for (state,) in raw.execute("SELECT DISTINCT status FROM jobs")}
    assert states <= set(Status)
