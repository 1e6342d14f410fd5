"""The SQLite engine: one file, one machine, any number of supervisors."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from supervisor.domain.errors import StoreError
from supervisor.store.base import AdoptOptions, AdoptReport, Database, Engine, RestoreReport
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.changes import SqliteChanges, SqliteSettled
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.store.sqlite.producer import SqliteProducer, SqliteTransactionalInsert, ownership, registry
from supervisor.store.sqlite.producer import operations as operations_on
from supervisor.system import settled_notice

if TYPE_CHECKING:
    from supervisor.store.base import Claims, MaintenanceStore, MoveEnd, Operations

__all__ = ["SqliteEngine"]


class SqliteEngine(Engine):
    """For `sqlite:///relative.db` and `sqlite:////absolute.db`."""

    transactional: SqliteTransactionalInsert

    def __init__(self, url: str) -> None:
        prefix = "sqlite:///"
        if url.endswith(":memory:"):
            raise StoreError(f"{url!r}: in-memory databases are not supported; name a file")
        if not url.startswith(prefix) or not url[len(prefix) :]:
            raise StoreError(f"{url!r} is not an SQLite URL; write sqlite:///relative.db or sqlite:////absolute.db")
        self._files = DatabaseFiles(Path(url[len(prefix) :]))
        self.url = f"{prefix}{self._files.database}"
        self.database = SqliteDatabase(self._files)
        self.ownership = ownership(self._files)
        self.transactional = SqliteTransactionalInsert(self._files, self.database.migrate)

    def preload(self) -> None:
        from supervisor.store.sqlite import claims, maintenance  # noqa: F401

    def producer(self, patience: float | None = None, *, create: bool = True) -> SqliteProducer:
        connection = Connection(self._files, synchronous="FULL", checkpoints=True, create=create, any_thread=True)
        try:
            schema.migrate(connection)
            connection.poll(BUSY_TIMEOUT if patience is None else patience)
        except BaseException:
            connection.close()
            raise
        return SqliteProducer(connection, self.transactional)

    def claims(self, *, keep_done: bool = True) -> Claims:
        """What has succeeded is always kept until it is pruned: an id that was deleted may be given again."""
        from supervisor.store.sqlite.claims import SqliteClaims

        return SqliteClaims(Connection(self._files, synchronous="NORMAL", any_thread=True))

    def maintenance(self) -> MaintenanceStore:
        from supervisor.store.sqlite.maintenance import SqliteMaintenance

        return SqliteMaintenance(self._files)

    def operations(self) -> Operations:
        schema.require_version(self._files).require_usable()
        return operations_on(Connection(self._files, synchronous="FULL", checkpoints=True, any_thread=True))

    def move_end(self) -> MoveEnd:
        from supervisor.store.sqlite.move import SqliteMoveEnd  # rarely needed

        return SqliteMoveEnd(self._files)

    def changes(self, *, ends: bool = False) -> SqliteChanges | SqliteSettled:
        connection = Connection(self._files, synchronous="NORMAL", any_thread=True)
        try:
            notices = settled_notice.notices() if ends else None
            if notices is None or len(registry(connection).supervisors()) > 1:  # their workers do not tell this process
                return SqliteChanges(connection)
        except BaseException:
            connection.close()
            raise
        return SqliteSettled(connection, notices)


class SqliteDatabase(Database):
    def __init__(self, files: DatabaseFiles) -> None:
        self._files = files
        self.file = files.database

    def connect(self) -> Connection:
        return Connection(self._files, synchronous="NORMAL")

    @property
    def folder(self) -> Path:
        return self._files.folder

    def exists(self) -> bool:
        return self._files.database.exists()

    def check_integrity(self, seconds: float) -> bool:
        return schema.is_sound(self._files, seconds)

    def migrate(self) -> list[int]:
        if self.exists() and not self._files.writable():
            raise StoreError(f"{self._files.database}: the database is read-only for this user")
        with closing(Connection(self._files, synchronous="FULL", checkpoints=True, create=True)) as connection:
            return schema.migrate(connection)

    def script(self) -> str:
        raise StoreError("an SQLite file is migrated by this program alone, after a copy; --print is for PostgreSQL")

    def pin(self) -> None:
        self._files.pinned = self._files.identity()

    def adopt(self, options: AdoptOptions, *, rehearse: bool = False) -> AdoptReport:
        from supervisor.store.sqlite import adopt  # rarely needed, and large

        return (adopt.rehearse if rehearse else adopt.adopt)(self._files, options)

    def back_up(self, target: Path) -> None:
        with closing(self.connect()) as connection:
            schema.back_up(connection, target)

    def restore(self, copy: Path) -> RestoreReport:
        from supervisor.store.sqlite.restore import restore  # rarely needed

        return restore(self._files, copy)
