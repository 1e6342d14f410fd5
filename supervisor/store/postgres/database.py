"""The database as a whole: its schema; copies of it are made with PostgreSQL's own tools."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from supervisor.domain.errors import StoreError
from supervisor.store.postgres import schema
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.values import AdoptOptions, AdoptReport, RestoreReport


class PostgresDatabase:
    """Implements `store.base.Database`."""

    def __init__(self, address: Address) -> None:
        self._address = address

    @property
    def file(self) -> Path | None:
        return None

    @property
    def folder(self) -> Path:
        self._address.make_folder()
        return self._address.folder

    def exists(self) -> bool:
        """With or without our tables. Raises StoreError if the server cannot be reached, or has no such database."""
        with closing(Connection(self._address)) as connection:
            connection.check()
            return True

    def check_integrity(self, seconds: float) -> bool:
        return True  # the server's business: data checksums, amcheck

    def epoch(self) -> str:
        with closing(Connection(self._address)) as connection:
            row = connection.row(QUERIES.meta, {"key": "epoch"})
            return str(row[0]) if row else ""

    def migrate(self) -> list[int]:
        with closing(Connection(self._address)) as connection:
            connection.check_writable()  # even if there is nothing to do
            return schema.migrate(connection)

    def script(self) -> str:
        with closing(Connection(self._address)) as connection:
            return schema.script(connection)

    def pin(self) -> None:
        """Nobody can exchange a server's database unnoticed."""

    def adopt(self, options: AdoptOptions, *, rehearse: bool = False) -> AdoptReport:
        raise StoreError("tables on PostgreSQL cannot be adopted yet; give job-supervisor a schema of its own")

    def back_up(self, target: Path) -> None:
        raise StoreError("a database on PostgreSQL is copied with pg_dump, or with your server's backups")

    def restore(self, copy: Path) -> RestoreReport:
        raise StoreError("a database on PostgreSQL is restored with pg_restore, or with your server's backups")
