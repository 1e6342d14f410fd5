"""The database as a whole: its file, its schema, its copies."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from supervisor.domain.errors import StoreError
from supervisor.store.base import AdoptOptions, AdoptReport, RestoreReport
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.damage import look_for_damage
from supervisor.store.sqlite.place import Place


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
