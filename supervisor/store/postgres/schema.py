"""The schema's version: creating it, bringing it up to date, refusing tables that are not ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.store.migrate import Migration, flags_of, refuse_if_unusable, shipped
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES

_PATH = "put the schema of the job tables of {} first, with SET search_path or ALTER ROLE ... SET search_path"
_ALL_CONTRACT = 3  # up to this version: the first that was released


def newest_version() -> int:
    """The schema that this program creates."""
    return shipped("supervisor.store.postgres")[-1].version


def version(connection: Connection) -> int:
    """The schema's version, 0 without our tables. Raises StoreError for tables that are not ours."""
    return _version({row[0] for row in connection.rows(QUERIES.tables)}, lambda: connection.row(*_SCHEMA_VERSION))


_SCHEMA_VERSION = (QUERIES.meta, {"key": "schema_version"})


def _version(tables: set[str], look: Any) -> int:
    if "job_meta" in tables:
        row = look()
        return int(row[0]) if row else 0
    if "jobs" in tables:
        raise StoreError("the database has a `jobs` table of another program; give job-supervisor a schema of its own")
    return 0


def migrate(connection: Connection, available: Sequence[Migration] | None = None) -> list[int]:
    """Bring the schema up to date, in one transaction; returns the versions applied now.

    Two programs may do so at the same time: one migrates, the other finds it done. Raises StoreError for a `jobs`
    table that is not ours, and for a newer schema that declares this program too old for it.
    """
    plan = list(shipped("supervisor.store.postgres") if available is None else available)
    current = version(connection)
    if current >= plan[-1].version:
        _refuse_if_unusable(connection, current)
        return []
    if not current:
        _require_schema(connection)
    with connection.write() as raw:
        raw.execute(QUERIES.migrating)
        raw.execute(QUERIES.take_time)
        return bring_up_to_date(raw, plan)


def script(connection: Connection, available: Sequence[Migration] | None = None) -> str:
    """What `migrate` would do, as SQL for whoever may do it; empty if there is nothing to do. Raises what that does."""
    plan = list(shipped("supervisor.store.postgres") if available is None else available)
    current = version(connection)
    if current >= plan[-1].version:
        _refuse_if_unusable(connection, current)
        return ""
    if not current:
        _require_schema(connection)
    [(begin,)] = connection.rows(QUERIES.migrating_here)
    flags = [QUERIES.set_meta % {"key": f"'{key}'", "value": f"'{value}'"} for key, value in _flags(plan).items()]
    files = [f"-- {one.name}\n{one.sql.strip()}" for one in plan if one.version > current]
    title = f"-- job-supervisor: the schema {current} becomes {plan[-1].version}"
    head = f"{title}\n{begin}\n{QUERIES.migrating};\n{QUERIES.take_time};"
    return "\n\n".join((head, *files, ";\n".join([*flags, "COMMIT"]))) + ";\n"


def _flags(plan: Sequence[Migration]) -> dict[str, str]:
    return flags_of(plan, _ALL_CONTRACT)


def bring_up_to_date(raw: Any, plan: Sequence[Migration]) -> list[int]:
    """Inside the caller's transaction. Returns the versions applied."""
    tables = _tables(raw)  # again, now that nobody else can migrate
    current = _version(tables, lambda: raw.execute(*_SCHEMA_VERSION).fetchone())
    applied = []
    for migration in plan:
        if migration.version > current:
            raw.execute(migration.sql.encode())  # several statements, without parameters
            applied.append(migration.version)
    if applied:
        for key, value in _flags(plan).items():
            raw.execute(QUERIES.set_meta, {"key": key, "value": value})
    return applied


def require_current(connection: Connection) -> None:
    """Raises StoreError for a database that is not ours, or older, or too new, or whose jobs were moved elsewhere.

    It is left untouched.
    """
    _refuse_if_unusable(connection, require_version(connection))


def require_version(connection: Connection) -> int:
    """The schema's version. Raises StoreError for a database that is not ours, or older."""
    current, newest = version(connection), newest_version()
    if current < newest:
        if not current:
            _require_schema(connection)
        problem = f"has schema {current}, older than {newest}" if current else "has no job tables yet"
        raise StoreError(f"{connection.address.shown}: the database {problem}; `supervisor migrate` fixes that")
    return current


def _require_schema(connection: Connection) -> None:
    """Raises StoreError if no schema of the search path exists: there is nowhere for tables."""
    row = connection.row(QUERIES.search_path)
    if row is not None and row[0] is None:
        raise StoreError(
            f"{connection.address.shown}: there is no schema {row[1]}; create it with CREATE SCHEMA, or correct the "
            "search path, which options= of the URL may set"
        )


def _refuse_if_unusable(connection: Connection, current: int) -> None:
    flags: dict[str, str] = dict(connection.rows(QUERIES.flags))
    refuse_if_unusable(flags, current, newest_version(), connection.address.shown)


def prepare(raw: Any, where: str, *, create: bool, migrate: Any) -> bool:
    """For a caller's connection, which may be in a transaction. Returns whether the tables exist even if that
    transaction is rolled back.
    """
    tables = _tables(raw)
    if tables == {"jobs"}:
        raise StoreError(
            f"this connection's search_path leads to a `jobs` table of another program; {_PATH.format(where)}"
        )
    current = _version(tables, lambda: raw.execute(*_SCHEMA_VERSION).fetchone())
    if current >= newest_version():
        refuse_if_unusable(dict(raw.execute(QUERIES.flags).fetchall()), current, newest_version(), where)
        return True
    if current or not create:
        problem = f"have schema {current}, older than {newest_version()}" if current else "are missing"
        hint = "" if current else ", or put their schema into this connection's search_path"
        raise StoreError(
            f"{where}: the job tables {problem}; call Queue.create_tables(), or run `supervisor migrate`{hint}"
        )
    migrate()
    if not _tables(raw):
        raise StoreError(f"this connection's search_path does not lead to the job tables; {_PATH.format(where)}")
    return True


def _tables(raw: Any) -> set[str]:
    return {row[0] for row in raw.execute(QUERIES.tables).fetchall()}
