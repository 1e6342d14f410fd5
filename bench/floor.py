"""The floor: one process with one connection that claims and completes jobs on a lean table, with no job
system around it. What a system on SQLite costs is the distance to this.
"""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

Loop = Callable[[sqlite3.Connection, int], None]
SCHEMA = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE jobs (id INTEGER PRIMARY KEY, type TEXT, payload TEXT, status TEXT);
CREATE INDEX pending ON jobs (id) WHERE status = 'pending';
"""
INSERT = "INSERT INTO jobs (type, payload, status) VALUES ('noop', '{}', 'pending')"
CLAIM = """
UPDATE jobs SET status = 'running'
WHERE id IN (SELECT id FROM jobs WHERE status = 'pending' ORDER BY id LIMIT ?) RETURNING id
"""
SETTLE = "UPDATE jobs SET status = 'done' WHERE id = ?"


def rate(folder: Path, loop: Loop, jobs: int) -> float:
    """Jobs a second of one loop."""
    with contextlib.closing(lean_table(folder)) as connection:
        connection.execute("BEGIN")
        connection.executemany(INSERT, [()] * jobs)
        connection.execute("COMMIT")
        began = time.perf_counter()
        loop(connection, jobs)
        return jobs / (time.perf_counter() - began)


def lean_table(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None)
    connection.executescript(SCHEMA)
    return connection


def two_transactions(connection: sqlite3.Connection, jobs: int) -> None:
    """A claim and a completion for each job, each a transaction of its own."""
    for _ in range(jobs):
        [claimed] = connection.execute(CLAIM, (1,)).fetchall()
        connection.execute(SETTLE, claimed)


def one_transaction(connection: sqlite3.Connection, jobs: int, batch: int = 1) -> None:
    """The completion of the last and the claim of the next, in one transaction."""
    claimed: list[tuple[int]] = []
    for _ in range(0, jobs, batch):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(SETTLE, claimed)
        claimed = connection.execute(CLAIM, (batch,)).fetchall()
        connection.execute("COMMIT")


def batches(connection: sqlite3.Connection, jobs: int) -> None:
    """The same, 64 jobs at a time."""
    one_transaction(connection, jobs, 64)


# By the contestant's name: the loop, and the jobs that make about a second of work.
LOOPS: dict[str, tuple[Loop, int]] = {
    "floor-2": (two_transactions, 25_000),
    "floor-1": (one_transaction, 30_000),
    "floor-64": (batches, 200_000),
}
TITLES = {
    "floor-2": "bare loop, two transactions a job",
    "floor-1": "bare loop, one transaction a job",
    "floor-64": "bare loop, one transaction for 64 jobs",
}
