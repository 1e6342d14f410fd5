"""The database as a whole: its file, its schema, its copies; and whether the file is damaged."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from supervisor.domain.errors import StoreError
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT, is_general, result_code, translated
from supervisor.store.sqlite.place import Place
from supervisor.store.values import AdoptOptions, AdoptReport, RestoreReport


class SqliteDatabase:
    """Implements `store.base.Database`."""

    def __init__(self, place: Place) -> None:
        self._place = place

    @property
    def file(self) -> Path:
        return self._place.database

    @property
    def folder(self) -> Path:
        return self._place.folder

    def exists(self) -> bool:
        return self._place.database.exists()

    def check_integrity(self, seconds: float) -> bool:
        return look_for_damage(self._place, seconds)

    def epoch(self) -> str:
        with closing(Connection(self._place, synchronous="NORMAL")) as connection:
            row = connection.row(QUERIES.meta, {"key": "epoch"})
            return str(row[0]) if row else ""

    def migrate(self) -> list[int]:
        if self.exists() and not self._place.writable():
            raise StoreError(f"{self._place.database}: the database is read-only for this user")
        with closing(Connection(self._place, synchronous="FULL", checkpoints=True, create=True)) as connection:
            return schema.migrate(connection)

    def script(self) -> str:
        raise StoreError("an SQLite file is migrated by this program alone, after a copy; --print is for PostgreSQL")

    def pin(self) -> None:
        self._place.pinned = self._place.identity()

    def adopt(self, options: AdoptOptions, *, rehearse: bool = False) -> AdoptReport:
        from supervisor.store.sqlite.adopt import execution  # rarely needed, and large

        return (execution.rehearse if rehearse else execution.adopt)(self._place, options)

    def back_up(self, target: Path) -> None:
        with closing(Connection(self._place, synchronous="NORMAL")) as connection:
            schema.back_up(connection, target)

    def restore(self, copy: Path) -> RestoreReport:
        from supervisor.store.sqlite.restore import restore  # rarely needed

        return restore(self._place, copy)


CHECK = "PRAGMA quick_check"
_OF_ROWS = ("CHECK constraint failed", "NULL value in", "NUMERIC value in", "TEXT value in")
_OURS = ("jobs", "job_errors", "job_runs", "job_supervisors", "job_workers", "job_controls", "job_meta")


def look_for_damage(place: Place, seconds: float) -> bool:
    """Run SQLite's quick check over the file; where an application has tables in it, too, over ours first.

    For at most so many seconds; returns whether it came to the end of the file. Raises StoreError that names
    the check and what it found, or if the file cannot be opened.
    """
    try:
        with contextlib.closing(_open(place)) as raw, _stopped_after(seconds, raw):
            tables = {name for (name,) in raw.execute(QUERIES.tables) if not name.startswith("sqlite_")}
            first = [f"({table})" for table in _OURS if table in tables] if tables.difference(_OURS) else []
            # The check is about the file, not about the contents of rows.
            raw.execute("PRAGMA ignore_check_constraints = ON")
            for what in (*first, ""):
                _check(raw, what, place)
    except sqlite3.Error as error:
        code = result_code(error)
        if code == sqlite3.SQLITE_INTERRUPT:
            return False
        if code != sqlite3.SQLITE_CORRUPT:
            raise translated(error, place.database) from None
        _insist([(str(error),)], place)
    return True


def _check(raw: sqlite3.Connection, what: str, place: Place) -> None:
    try:
        found = raw.execute(f"{CHECK}{what}").fetchall()
    except sqlite3.Error as error:
        if not is_general(error):
            raise
        return  # an index or a column of the application's needs a function or a collation of its own
    _insist([row for row in found if not row[0].startswith(_OF_ROWS)] or [("ok",)], place)


def _open(place: Place) -> sqlite3.Connection:
    return sqlite3.connect(f"{place.database.as_uri()}?mode=rw", uri=True, timeout=BUSY_TIMEOUT)


def _insist(findings: list[tuple[str]], place: Place) -> None:
    if findings != [("ok",)]:
        found = " ".join(findings[0][0].replace("*** in database main ***", "").split())
        raise StoreError(
            f"{place.database}: the file is damaged, as {CHECK} found: {found}; "
            "stop every program that uses it and restore a backup, or save what can be read with `.recover`"
        )


@contextlib.contextmanager
def _stopped_after(seconds: float, raw: sqlite3.Connection) -> Iterator[None]:
    """Interrupt the connection when the time is up."""
    timer = threading.Timer(seconds, raw.interrupt)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()  # a fork follows: no other thread may be left
