"""Five tables as applications make them by hand, each with rows of every kind, and what such an application runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.store.base import AdoptOptions

ROWS = 1000
SOON, LATE = "2024-05-01", "2999-01-01"  # long due; not in this millennium


@dataclass(frozen=True)
class Shape:
    """`command` are the options that `supervisor adopt` gets beside what it proposes."""

    name: str
    sql: str
    table: str = "jobs"
    command: tuple[str, ...] = ()
    pending: str = "pending"
    running: str = "running"
    done: str = "done"
    failed: str = "failed"
    types: tuple[str, ...] = ()

    @property
    def options(self) -> AdoptOptions:
        def pairs(option: str) -> dict[str, str]:
            given = zip(self.command[::2], self.command[1::2], strict=True)
            return dict(value.split("=") for name, value in given if name == option)

        return AdoptOptions(self.table, pairs("--rename"), pairs("--status"))

    def word(self, number: int) -> str:
        return (self.pending, self.running, self.done, self.failed)[number % 4]

    def unfinished(self, rows: int = ROWS) -> list[int]:
        """The numbers of the rows that are due: every tenth is due much later."""
        return [number for number in range(rows) if number % 4 in (0, 1) and number % 10 != 9]

    def make(self, path: Path, rows: int = ROWS) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as raw:
            raw.executescript(self.sql)
            raw.execute("BEGIN")
            for number in range(rows):
                row = {name: value for name, value in self.row(number).items() if value is not ...}
                marks = ", ".join("?" * len(row))
                raw.execute(f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({marks})", list(row.values()))
            raw.execute("COMMIT")

    def row(self, number: int) -> dict[str, Any]:
        """One row; `...` is a column that the INSERT leaves out."""
        common = {"type": self.kind(number), "status": self.word(number)}
        return common | dict(_OWN[self.name](self, number))

    def kind(self, number: int) -> str:
        kinds = [*self.types, "tag", "caption", "nsfw"]
        return kinds[number % len(kinds)]


def payload(number: int) -> str:
    """Odd but valid JSON in some; the spaces show that it is kept byte for byte."""
    return json.dumps({"n": number}) if number % 7 else f'{{ "n" : {number}, "text": "naïve ☃" }}'


def _artifex(shape: Shape, number: int) -> Iterator[tuple[str, Any]]:
    yield "payload", payload(number)
    yield "attempts", number % 3
    yield "last_error", "no such file" if shape.word(number) == shape.failed else None
    yield "updated_at", f"{SOON} 10:00:{number % 60:02}" if number % 4 else ...


def _course(shape: Shape, number: int) -> Iterator[tuple[str, Any]]:
    word = shape.word(number)
    day = LATE if number % 10 == 9 else SOON
    forms = ["10:00:00", "10:00:00+02:00", "10:00:00.123456", "10:00:00Z"]
    yield "id", f"0f{number:04x}-uuid-{number}"
    yield "payload", payload(number)
    yield "priority", number % 5
    yield "attempts", number % 3 if day == SOON else 0
    yield "max_attempts", 5 if number % 2 else ...
    yield "scheduled_at", f"{day}T{forms[number // 4 % 4]}"
    yield "locked_by", "worker-7" if word == shape.running else None
    yield "locked_at", f"{SOON}T11:00:00" if word == shape.running else None
    yield "completed_at", f"{SOON}T12:00:00.5" if word == shape.done else None
    yield "error", "Error: nope" if word == shape.failed else None


def _article(shape: Shape, number: int) -> Iterator[tuple[str, Any]]:
    yield "id", f"job-{number}"
    yield "queue", "pictures" if number % 2 else "texts"
    yield "version", number % 3
    yield "capability", "gpu" if number % 5 == 0 else None
    yield "payload", payload(number)
    yield "claimed_by", "host/1" if shape.word(number) == shape.running else None
    yield "claimed_at", f"{SOON} 10:00:00" if shape.word(number) == shape.running else None
    yield "available_at", f"{LATE if number % 10 == 9 else SOON} 10:00:00"


def _monitoring(shape: Shape, number: int) -> Iterator[tuple[str, Any]]:
    word = shape.word(number)
    yield "data", payload(number)
    yield "scheduled_for", f"{LATE if number % 10 == 9 else SOON} 10:00:{number % 60:02}"
    yield "locked_by", "pid-9" if word == shape.running else None
    yield "locked_at", f"{SOON} 11:00:00" if word == shape.running else None
    yield "attempts", number % 3 if number % 10 != 9 else 0  # or `run --burst` takes it for one that waits for a retry
    yield "error", "timeout" if word == shape.failed else None
    yield "completed_at", f"{SOON} 12:00:00" if word == shape.done else None


def _node(shape: Shape, number: int) -> Iterator[tuple[str, Any]]:
    noon = 1714557600000 + number
    yield "data", payload(number)
    yield "scheduled_for", 32472144000000 + number if number % 10 == 9 else noon
    yield "created_at", noon
    yield "attempts", number % 3 if number % 10 != 9 else 0
    yield "last_error", "ECONNREFUSED" if shape.word(number) == shape.failed else None


_OWN = {"artifex": _artifex, "course": _course, "article": _article, "monitoring": _monitoring, "node": _node}

SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "artifex",
            """CREATE TABLE jobs (
              id INTEGER PRIMARY KEY,
              type TEXT NOT NULL,
              payload TEXT,
              status TEXT NOT NULL DEFAULT 'pending',
              attempts INTEGER NOT NULL DEFAULT 0,
              last_error TEXT,
              created_at TEXT DEFAULT CURRENT_TIMESTAMP,
              updated_at TEXT DEFAULT CURRENT_TIMESTAMP
            );""",
        ),
        Shape(
            "course",
            """CREATE TABLE jobs (
              id TEXT PRIMARY KEY NOT NULL,
              type TEXT NOT NULL,
              payload TEXT NOT NULL,
              status TEXT NOT NULL DEFAULT 'pending'
                CHECK (status IN ('pending', 'processing', 'completed', 'failed')),
              priority INTEGER NOT NULL DEFAULT 0,
              attempts INTEGER NOT NULL DEFAULT 0,
              max_attempts INTEGER NOT NULL DEFAULT 3,
              scheduled_at TEXT NOT NULL DEFAULT (datetime('now')),
              locked_by TEXT,
              locked_at TEXT,
              completed_at TEXT,
              error TEXT,
              created_at TEXT NOT NULL DEFAULT (datetime('now'))
            );
            CREATE INDEX by_status ON jobs (status, priority DESC, scheduled_at);""",
            command=("--status", "processing=running", "--status", "completed=done"),
            running="processing",
            done="completed",
        ),
        Shape(
            "article",
            """CREATE TABLE jobs (
              id TEXT NOT NULL,
              queue TEXT NOT NULL,
              version INTEGER NOT NULL,
              capability TEXT,
              type TEXT NOT NULL,
              payload TEXT NOT NULL,
              status TEXT NOT NULL DEFAULT 'QUEUED',
              claimed_by TEXT,
              claimed_at DATETIME,
              available_at DATETIME DEFAULT CURRENT_TIMESTAMP,
              created_at DATETIME DEFAULT CURRENT_TIMESTAMP,
              PRIMARY KEY (id),
              CHECK (status IN ('QUEUED', 'CLAIMED', 'DONE', 'FAILED'))
            );
            CREATE INDEX queued ON jobs (queue, version) WHERE status = 'QUEUED';""",
            pending="QUEUED",
            running="CLAIMED",
            done="DONE",
            failed="FAILED",
        ),
        Shape(
            "monitoring",
            """CREATE TABLE jobs (
              id INTEGER PRIMARY KEY AUTOINCREMENT,
              type TEXT NOT NULL,
              data TEXT,
              status TEXT DEFAULT 'pending',
              scheduled_for DATETIME DEFAULT CURRENT_TIMESTAMP,
              locked_by TEXT,
              locked_at DATETIME,
              attempts INTEGER DEFAULT 0,
              error TEXT,
              created_at DATETIME DEFAULT CURRENT_TIMESTAMP,
              completed_at DATETIME
            );
            CREATE INDEX due ON jobs (status, scheduled_for);""",
            command=(
                *("--status", "processing=running", "--status", "completed=done"),
                *("--rename", "scheduled_for=scheduled_at", "--rename", "data=payload"),
                *("--rename", "locked_by=old_worker"),
            ),
            running="processing",
            done="completed",
            types=("MY_JOB_TYPE",),
        ),
        Shape(
            "node",
            """CREATE TABLE job_queue (
              id INTEGER PRIMARY KEY AUTOINCREMENT,
              type TEXT NOT NULL,
              data TEXT NOT NULL DEFAULT '{}',
              status TEXT NOT NULL DEFAULT 'queued',
              attempts INTEGER NOT NULL DEFAULT 0,
              last_error TEXT,
              scheduled_for INTEGER NOT NULL,
              created_at INTEGER NOT NULL
            );
            CREATE INDEX next_job ON job_queue (status, scheduled_for, id);""",
            table="job_queue",
            pending="queued",
            running="active",
            done="succeeded",
            failed="dead",
            types=("send:mail",),
        ),
    )
}
