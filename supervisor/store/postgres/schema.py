"""The database as a whole: its schema, created, brought up to date, or refused if it is not ours.

Copies of it are made with PostgreSQL's own tools.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.store.base import AdoptOptions, AdoptReport, Database, RestoreReport
from supervisor.store.migrate import Known, Migration, Rows, flags_of, known, shipped
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES

_PACKAGE = "supervisor.store.postgres"
_PATH = "put the schema of the job tables of {} first, with SET search_path or ALTER ROLE ... SET search_path"


def migrate(connection: Connection, available: Sequence[Migration] | None = None) -> list[int]:
    """Bring the schema up to date, in one transaction; returns the versions applied now.

    Two programs may do so at the same time: one migrates, the other finds it done. Raises StoreError for a `jobs`
    table that is not ours, and for a newer schema that declares this program too old for it.
    """
    if not _to_migrate(connection, available).missing:
        return []
    with connection.write() as raw:
        raw.execute(QUERIES.migrating)
        raw.execute(QUERIES.take_time)
        # Again, now that nobody else can migrate.
        found = _look(_fetching(raw), connection.address.shown, available)
        for one in found.missing:
            raw.execute(one.sql)  # several statements, without parameters
        for key, value in flags_of(found.plan).items() if found.missing else ():
            raw.execute(QUERIES.set_meta, {"key": key, "value": value})
        return [one.version for one in found.missing]


def script(connection: Connection, available: Sequence[Migration] | None = None) -> str:
    """What `migrate` would do, as SQL for whoever may do it; empty if there is nothing to do. Raises what that does."""
    found = _to_migrate(connection, available)
    if not found.missing:
        return ""
    [(begin,)] = connection.rows(QUERIES.migrating_here)
    flags = flags_of(found.plan).items()
    stamps = [QUERIES.set_meta % {"key": f"'{key}'", "value": f"'{value}'"} for key, value in flags]
    files = [f"-- {one.name}\n{one.sql.strip()}" for one in found.missing]
    title = f"-- job-supervisor: the schema {found.version} becomes {found.ours}"
    head = f"{title}\n{begin}\n{QUERIES.migrating};\n{QUERIES.take_time};"
    return "\n\n".join((head, *files, ";\n".join([*stamps, "COMMIT"]))) + ";\n"


def _to_migrate(connection: Connection, plan: Sequence[Migration] | None) -> Known:
    found = _look(connection.rows, connection.address.shown, plan)
    if not found.missing:
        return found.require_usable()
    if not found.version:
        _require_schema(connection)
    return found


# Looking at the version


def _look(rows: Rows, where: str, plan: Sequence[Migration] | None = None) -> Known:
    """Raises StoreError for tables that are not ours."""
    return known(rows, QUERIES, where, plan or shipped(_PACKAGE), "give job-supervisor a schema of its own")


def _fetching(raw: Any) -> Rows:
    return lambda sql: list(raw.execute(sql).fetchall())


def require_version(connection: Connection) -> Known:
    """Raises StoreError for a database that is not ours, or older."""
    found = _look(connection.rows, connection.address.shown)
    if not found.version:
        _require_schema(connection)
    return found.require_version()


def _require_schema(connection: Connection) -> None:
    """Raises StoreError if no schema of the search path exists: there is nowhere for tables."""
    row = connection.row(QUERIES.search_path)
    if row is not None and row[0] is None:
        raise StoreError(
            f"{connection.address.shown}: there is no schema {row[1]}; create it with CREATE SCHEMA, or correct the "
            "search path, which options= of the URL may set"
        )


def prepare(raw: Any, where: str, *, create: bool, migrate: Any) -> bool:
    """For a caller's connection, which may be in a transaction. Returns whether the tables exist even if that
    transaction is rolled back.
    """
    rows = _fetching(raw)
    if "jobs" in (names := {row[0] for row in rows(QUERIES.tables)}) and "job_meta" not in names:
        raise StoreError(
            f"this connection's search_path leads to a `jobs` table of another program; {_PATH.format(where)}"
        )
    found = _look(rows, where)
    if not found.missing:
        found.require_usable()
        return True
    if found.version or not create:
        hint = "" if found.version else ", or put their schema into this connection's search_path"
        raise found.too_late(f"; call Queue.create_tables(), or run `supervisor migrate`{hint}")
    migrate()
    if not rows(QUERIES.tables):
        raise StoreError(f"this connection's search_path does not lead to the job tables; {_PATH.format(where)}")
    return True


class PostgresDatabase(Database):
    def __init__(self, address: Address) -> None:
        self._address = address

    def connect(self) -> Connection:
        return Connection(self._address)

    @property
    def folder(self) -> Path:
        self._address.make_folder()
        return self._address.folder

    def exists(self) -> bool:
        """With or without our tables. Raises StoreError if the server cannot be reached, or has no such database."""
        with closing(self.connect()) as connection:
            connection.check()
            return True

    def migrate(self) -> list[int]:
        with closing(self.connect()) as connection:
            connection.check_writable()  # even if there is nothing to do
            return migrate(connection)

    def script(self) -> str:
        with closing(self.connect()) as connection:
            return script(connection)

    def adopt(self, options: AdoptOptions, *, rehearse: bool = False) -> AdoptReport:
        raise StoreError("tables on PostgreSQL cannot be adopted yet; give job-supervisor a schema of its own")

    def back_up(self, target: Path) -> None:
        raise StoreError("a database on PostgreSQL is copied with pg_dump, or with your server's backups")

    def restore(self, copy: Path) -> RestoreReport:
        raise StoreError("a database on PostgreSQL is restored with pg_restore, or with your server's backups")
