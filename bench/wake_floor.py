"""The floor of a wake-up: bare processes on a lean table, from before an INSERT to the commit of its claim by another
process that was asleep. One hop: the claiming process waits for inotify itself. Two hops, as in ours: another process
does, looks at the table, and posts an eventfd.

As a program: `python -m bench.wake_floor FOLDER HOPS JOBS` prints the milliseconds of each job as a JSON list.
"""

from __future__ import annotations

import json
import mmap
import os
import select
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.floor import CLAIM, INSERT, lean_table
from supervisor.system.files import FileWatch
from supervisor.system.kernel import die_with_parent

ONE, TWO = 1, 2
_REST = 0.05  # seconds of idleness before each INSERT
_PATIENCE = 5.0
_WINDOW = (0.0, 0.0001, 0.0002, 0.0005, 0.001)  # seconds after a hint, until the commit is visible
_DUE = "SELECT 1 FROM jobs WHERE status = 'pending' LIMIT 1"


def milliseconds(folder: Path, hops: int, jobs: int) -> list[float]:
    """From before each INSERT to its claim."""
    connection = lean_table(folder)
    claimed: memoryview[float] = memoryview(mmap.mmap(-1, 8 * jobs)).cast("d")
    post = os.eventfd(0, os.EFD_NONBLOCK)
    children = [_fork(lambda: _claim(folder, claimed, None if hops == ONE else post))]
    if hops == TWO:
        children.append(_fork(lambda: _watch(folder, post)))
    try:
        time.sleep(0.5)
        return [_insert(connection, claimed, number) for number in range(jobs)]
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        connection.close()


def _insert(connection: sqlite3.Connection, claimed: memoryview[float], number: int) -> float:
    time.sleep(_REST)
    before = time.perf_counter()
    connection.execute(INSERT)
    while not claimed[number] and time.perf_counter() < before + _PATIENCE:
        time.sleep(0.002)
    return (claimed[number] - before) * 1000


def _fork(run: Callable[[], None]) -> int:
    parent, pid = os.getpid(), os.fork()
    if pid == 0:
        try:
            die_with_parent(parent)
            run()
        finally:
            os._exit(1)
    return pid


def _claim(folder: Path, claimed: memoryview[float], post: int | None) -> None:
    """Claim each job as soon as woken: by a post, or by hints of its own."""
    connection, number = _connect(folder), 0
    for _ in _hints(folder) if post is None else _posts(post):
        if connection.execute(_DUE).fetchone() is None:
            continue
        connection.execute("BEGIN IMMEDIATE")
        found = connection.execute(CLAIM, (1,)).fetchall()
        connection.execute("COMMIT")
        for _ in found:
            claimed[number] = time.perf_counter()
            number += 1


def _watch(folder: Path, post: int) -> None:
    connection = _connect(folder)
    version = None
    for _ in _hints(folder):
        before, version = version, connection.execute("PRAGMA data_version").fetchone()
        if version != before and connection.execute(_DUE).fetchone():
            os.eventfd_write(post, 1)


def _posts(post: int) -> Iterator[None]:
    while True:
        select.select([post], [], [])
        os.eventfd_read(post)
        yield


def _hints(folder: Path) -> Iterator[None]:
    """After each hint several looks, since it may come before the commit is visible."""
    watch = FileWatch(folder / "floor.db", folder / "floor.db-wal")
    watch.resume()
    while True:
        select.select([watch.fileno()], [], [])
        watch.seen()
        for pause in _WINDOW:
            time.sleep(pause)
            yield


def _connect(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "floor.db", isolation_level=None, timeout=5)
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


if __name__ == "__main__":
    print(json.dumps(milliseconds(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
