"""The database as a whole: its schema, created, brought up to date, or refused if it is not ours.

Copies of it are made with PostgreSQL's own tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.store.migrate import Migration, flags_of, refuse_if_unusable, shipped, version_of
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Row
from supervisor.store.values import AdoptOptions, AdoptReport, RestoreReport

_PACKAGE = "supervisor.store.postgres"
_PATH = "put the schema of the job tables of {} first, with SET search_path or ALTER ROLE ... SET search_path"


def newest_version() -> int:
    """The schema that this program creates."""
    return shipped(_PACKAGE)[-1].version


def migrate(connection: Connection, available: Sequence[Migration] | None = None) -> list[int]:
    """Bring the schema up to date, in one transaction; returns the versions applied now.

    Two programs may do so at the same time: one migrates, the other finds it done. Raises StoreError for a `jobs`
    table that is not ours, and for a newer schema that declares this program too old for it.
    """
    plan = shipped(_PACKAGE) if available is None else available
    if _current(connection, plan) is None:
        return []
    with connection.write() as raw:
        raw.execute(QUERIES.migrating)
        raw.execute(QUERIES.take_time)
        return bring_up_to_date(raw, connection.address.shown, plan)


def script(connection: Connection, available: Sequence[Migration] | None = None) -> str:
    """What `migrate` would do, as SQL for whoever may do it; empty if there is nothing to do. Raises what that does."""
    plan = shipped(_PACKAGE) if available is None else available
    current = _current(connection, plan)
    if current is None:
        return ""
    [(begin,)] = connection.rows(QUERIES.migrating_here)
    flags = [QUERIES.set_meta % {"key": f"'{key}'", "value": f"'{value}'"} for key, value in flags_of(plan).items()]
    files = [f"-- {one.name}\n{one.sql.strip()}" for one in plan if one.version > current]
    title = f"-- job-supervisor: the schema {current} becomes {plan[-1].version}"
    head = f"{title}\n{begin}\n{QUERIES.migrating};\n{QUERIES.take_time};"
    return "\n\n".join((head, *files, ";\n".join([*flags, "COMMIT"]))) + ";\n"


def _current(connection: Connection, plan: Sequence[Migration]) -> int | None:
    """The version to migrate from; None if there is nothing to do."""
    current, flags = _looked_at(connection.rows, connection.address.shown)
    if current >= plan[-1].version:
        refuse_if_unusable(flags, plan[-1].version, connection.address.shown)
        return None
    if not current:
        _require_schema(connection)
    return current


def bring_up_to_date(raw: Any, where: str, plan: Sequence[Migration] | None = None) -> list[int]:
    """Inside the caller's transaction. Returns the versions applied."""
    plan = shipped(_PACKAGE) if plan is None else plan
    current, _ = _looked_at(_fetching(raw), where)  # again, now that nobody else can migrate
    applied = [one for one in plan if one.version > current]
    for one in applied:
        raw.execute(one.sql.encode())  # several statements, without parameters
    for key, value in flags_of(plan).items() if applied else ():
        raw.execute(QUERIES.set_meta, {"key": key, "value": value})
    return [one.version for one in applied]


# Looking at the version


def _looked_at(rows: Callable[[str], list[Row]], where: str) -> tuple[int, Mapping[str, str]]:
    """The schema's version, 0 without our tables, and what job_meta says of it. Raises StoreError for tables that are
    not ours.
    """
    tables = {row[0] for row in rows(QUERIES.tables)}
    if "job_meta" in tables:
        flags: dict[str, str] = dict(rows(QUERIES.flags))
        return version_of(flags, where), flags
    if "jobs" in tables:
        raise StoreError("the database has a `jobs` table of another program; give job-supervisor a schema of its own")
    return 0, {}


def _fetching(raw: Any) -> Callable[[str], list[Row]]:
    return lambda sql: list(raw.execute(sql).fetchall())


def version(connection: Connection) -> int:
    """The schema's version, 0 without our tables. Raises StoreError for tables that are not ours."""
    return _looked_at(connection.rows, connection.address.shown)[0]


def require_version(connection: Connection) -> Mapping[str, str]:
    """What job_meta says of the schema. Raises StoreError for a database that is not ours, or older."""
    where, newest = connection.address.shown, newest_version()
    current, flags = _looked_at(connection.rows, where)
    if current < newest:
        if not current:
            _require_schema(connection)
        problem = f"has schema {current}, older than {newest}" if current else "has no job tables yet"
        raise StoreError(f"{where}: the database {problem}; `supervisor migrate` fixes that")
    return flags


def require_current(connection: Connection) -> None:
    """Raises StoreError for a database that is not ours, or older, or too new, or whose jobs were moved elsewhere.

    It is left untouched.
    """
    refuse_if_unusable(require_version(connection), newest_version(), connection.address.shown)


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
    if {row[0] for row in rows(QUERIES.tables)} == {"jobs"}:
        raise StoreError(
            f"this connection's search_path leads to a `jobs` table of another program; {_PATH.format(where)}"
        )
    current, flags = _looked_at(rows, where)
    if current >= newest_version():
        refuse_if_unusable(flags, newest_version(), where)
        return True
    if current or not create:
        problem = f"have schema {current}, older than {newest_version()}" if current else "are missing"
        hint = "" if current else ", or put their schema into this connection's search_path"
        raise StoreError(
            f"{where}: the job tables {problem}; call Queue.create_tables(), or run `supervisor migrate`{hint}"
        )
    migrate()
    if not rows(QUERIES.tables):
        raise StoreError(f"this connection's search_path does not lead to the job tables; {_PATH.format(where)}")
    return True


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
            return migrate(connection)

    def script(self) -> str:
        with closing(Connection(self._address)) as connection:
            return script(connection)

    def pin(self) -> None:
        """Nobody can exchange a server's database unnoticed."""

    def adopt(self, options: AdoptOptions, *, rehearse: bool = False) -> AdoptReport:
        raise StoreError("tables on PostgreSQL cannot be adopted yet; give job-supervisor a schema of its own")

    def back_up(self, target: Path) -> None:
        raise StoreError("a database on PostgreSQL is copied with pg_dump, or with your server's backups")

    def restore(self, copy: Path) -> RestoreReport:
        raise StoreError("a database on PostgreSQL is restored with pg_restore, or with your server's backups")
