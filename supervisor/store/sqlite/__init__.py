"""The SQLite engine: one file, one machine, any number of supervisors."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.domain.job import NewJob, decoded
from supervisor.store.base import AdoptReport, RestoreReport
from supervisor.store.sqlite import owner, schema
from supervisor.store.sqlite.changes import SqliteChanges
from supervisor.store.sqlite.chores import SqliteChores
from supervisor.store.sqlite.claims import SqliteClaims
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.damage import look_for_damage
from supervisor.store.sqlite.intake import SqliteIntake, insert
from supervisor.store.sqlite.operations import SqliteOperations
from supervisor.store.sqlite.place import Place
from supervisor.store.sqlite.schedules import SqliteTimetable
from supervisor.store.sqlite.writelock import WriterWatch

__all__ = ["SqliteEngine"]


class SqliteEngine:
    """Implements `store.base.Engine` for `sqlite:///relative.db` and `sqlite:////absolute.db`."""

    def __init__(self, url: str) -> None:
        prefix = "sqlite:///"
        if not url.startswith(prefix) or not url[len(prefix) :] or url.endswith(":memory:"):
            raise StoreError(f"{url!r} is no SQLite URL; write sqlite:///relative.db or sqlite:////absolute.db")
        self._place = Place(Path(url[len(prefix) :]))
        self.url = f"{prefix}{self._place.database}"

    @property
    def folder(self) -> Path:
        """Where the supervisors of this database keep their lock files."""
        return self._place.folder

    @property
    def watched(self) -> Path:
        """A directory in which every commit shows as a change of a file."""
        return self._place.database.parent

    @property
    def watch_prefix(self) -> str:
        """How the names of those files begin."""
        return self._place.database.name

    @property
    def machine_id(self) -> str:
        return owner.machine_id()

    @property
    def boot_id(self) -> str:
        return owner.boot_id()

    def exists(self) -> bool:
        return self._place.database.exists()

    def look_for_damage(self, seconds: float) -> bool:
        """Raises StoreError if the file is damaged. Returns whether it was looked through to its end in time."""
        return look_for_damage(self._place, seconds)

    def migrate(self) -> list[int]:
        """Create the schema or bring it up to date. Returns the versions applied.

        Raises StoreError also where there is nothing to do, but the file could not be written.
        """
        if self.exists() and not self._place.writable():
            raise StoreError(f"{self._place.database}: the database is read-only for this user")
        connection = Connection(self._place, synchronous="FULL", checkpoints=True, create=True)
        try:
            return schema.migrate(connection)
        finally:
            connection.close()

    def pin(self) -> None:
        """From now on insist on the file that is there now: opening another one of its name raises StoreGone."""
        self._place.pinned = self._place.identity()

    def adopt(self, *, payload_column: str | None = None, statements: Sequence[str] = ()) -> AdoptReport:
        """Take over a `jobs` table made by hand; `statements` are the application's, to be tried on it."""
        from supervisor.store.sqlite.adopt import adopt  # rarely needed, and not small

        return adopt(self._place, payload_column=payload_column, tried=statements)

    def writers(self) -> WriterWatch:
        return WriterWatch(self._place)

    def holders(self) -> list[int]:
        """The pids of the supervisors that live, also where the database itself is gone."""
        return owner.holders(self._place)

    def claim_ownership(self, supervisor: str) -> owner.OwnerFile:
        return owner.OwnerFile(self._place, supervisor)

    def intake(self, *, create: bool = True) -> SqliteIntake:
        """Opens, and where `create` allows it makes, the database and its schema."""
        connection = Connection(self._place, synchronous="FULL", checkpoints=True, create=create, any_thread=True)
        try:
            schema.migrate(connection)
            connection.poll()
        except BaseException:
            connection.close()
            raise
        return SqliteIntake(connection)

    def prepare(self, connection: sqlite3.Connection, *, create: bool) -> bool:
        """See to it that the tables stand for a caller's connection; whether they do for good.

        Where there are none and the caller has begun a transaction, they are made in it. Raises StoreError at once
        where that cannot be: nothing is waited for, since the caller may hold the write lock.
        """
        return schema.prepare(connection, self._place, create=create, migrate=self.migrate)

    def insert(self, connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[int]:
        """Insert jobs on a caller's connection: they exist if and only if its transaction commits, and its errors
        reach the caller as they are.
        """
        return insert(connection, jobs, time.time())

    def epoch(self) -> str:
        """Names this life of the database: ids may be used again after a copy was put in its place."""
        connection = Connection(self._place, synchronous="NORMAL")
        try:
            row = connection.row(QUERIES.meta, {"key": "epoch"})
            return str(row[0]) if row else ""
        finally:
            connection.close()

    def meta(self, job_id: int) -> Any:
        """What the user keeps with a job; None without anything."""
        connection = Connection(self._place, synchronous="NORMAL")
        try:
            row = connection.row(QUERIES.job_meta, {"id": job_id})
            return None if row is None else decoded(row[0])
        finally:
            connection.close()

    def claims(self, patience: float | None = None) -> SqliteClaims:
        """`patience` is how many seconds to wait for a foreign writer, where that is not the usual."""
        connection = Connection(self._place, synchronous="NORMAL")
        if patience is not None:
            connection.raw.execute(f"PRAGMA busy_timeout = {patience * 1000:.0f}")
        return SqliteClaims(connection)

    def chores(self) -> SqliteChores:
        return SqliteChores(Connection(self._place, synchronous="NORMAL"))

    def changes(self) -> SqliteChanges:
        return SqliteChanges(Connection(self._place, synchronous="NORMAL"))

    def timetable(self) -> SqliteTimetable:
        return SqliteTimetable(Connection(self._place, synchronous="FULL"))

    def operations(self) -> SqliteOperations:
        """For a database that exists and has our present schema; any other is left untouched."""
        schema.require_current(self._place)
        return SqliteOperations(Connection(self._place, synchronous="FULL", checkpoints=True))

    def back_up(self, target: Path) -> None:
        """An online copy into a new file."""
        connection = Connection(self._place, synchronous="NORMAL")
        try:
            schema.back_up(connection, target)
        finally:
            connection.close()

    def restore(self, copy: Path) -> RestoreReport:
        """Put a copy in the database's place; what was there before is kept beside it."""
        from supervisor.store.sqlite.restore import restore  # rarely needed

        return restore(self._place, copy)
