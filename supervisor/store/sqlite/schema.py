"""The schema's version: creating it, bringing it up to date, refusing tables that are not ours."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from supervisor.domain.errors import InvalidJob, StoreError
from supervisor.store.migrate import Migration, flags_of, refuse_if_unusable, shipped, statements
from supervisor.store.sqlite import repair
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.definition import column_added
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT, translated
from supervisor.store.sqlite.place import Place

MINIMUM_SQLITE = (3, 37, 0)  # STRICT tables

_ALL_CONTRACT = 10  # up to this version
_FENCES = "0008_fences.sql"
_PART = re.compile(r"^(CREATE|DROP) (?:UNIQUE )?(?:INDEX|VIEW|TRIGGER) (\w+)", re.M)


def migrate(connection: Connection, available: Sequence[Migration] | None = None) -> list[int]:
    """Bring the schema up to date; returns the versions applied now.

    Two programs may do so at the same time: one migrates, the other finds it done. An older schema is copied to
    `<database>.before-<version>` first. Raises StoreError for a `jobs` table that is not ours, and for a
    newer schema that declares this program too old for it.
    """
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; at least 3.37 is needed")
    plan = list(shipped("supervisor.store.sqlite") if available is None else available)
    current = version(connection)
    if current >= plan[-1].version:
        refuse_if_unusable(dict(connection.rows(QUERIES.flags)), current, plan[-1].version, connection.place.database)
        if current == plan[-1].version:
            _make_missing(connection, plan)
        return []
    if current:
        _back_up(connection, current)
    with connection.write() as raw:
        return bring_up_to_date(raw, plan)


def _make_missing(connection: Connection, plan: Sequence[Migration]) -> None:
    """Recreate indexes, views and triggers that were dropped: without one of them nothing works."""
    there = {name for (name,) in connection.rows(QUERIES.named_parts)}
    if _parts_of(plan) <= there:
        return
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        bring_up_to_date(fresh, plan)
        missing = [sql for name, sql in fresh.execute(QUERIES.parts) if name not in there]
    if missing:
        with connection.write() as raw:
            for sql in missing:
                raw.execute(sql)


def _parts_of(plan: Sequence[Migration]) -> set[str]:
    """Their names, from the text: every program checks at its first use, and creating the schema takes milliseconds."""
    named: set[str] = set()
    for migration in plan:
        for verb, name in _PART.findall(migration.sql):
            (named.add if verb == "CREATE" else named.discard)(name)
    return named


def prepare(raw: sqlite3.Connection, place: Place, *, create: bool, migrate: Callable[[], object]) -> bool:
    """For a caller's connection, which may be in a transaction and hold the write lock, so nothing waits here.

    Returns whether the tables exist even if that transaction is rolled back.
    """
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may be anything
    _require_same_file(cursor, place)
    names = {_plain(row[0]) for row in cursor.execute(QUERIES.tables)}
    current, newest = 0, newest_version()
    if "job_meta" in names:
        row = cursor.execute(QUERIES.meta, {"key": "schema_version"}).fetchone()
        current = int(row[0]) if row else 0
    if current >= newest:
        flags = {_plain(key): _plain(value) for key, value in cursor.execute(QUERIES.flags)}
        refuse_if_unusable(flags, current, newest, place.database)
        return True
    if not raw.in_transaction and (create or current):
        migrate()
        return True
    if current or "jobs" in names or not create:
        problem = f"have schema {current}, older than {newest}" if current else "are not those of job-supervisor"
        raise StoreError(
            f"{place.database}: the job tables {problem if names else 'are missing'}, and your transaction is open; "
            "call Queue.create_tables(), or run `supervisor migrate`, before it begins"
        )
    for migration in shipped("supervisor.store.sqlite"):
        for statement in statements(migration.sql):
            cursor.execute(statement)
    stamp(cursor, shipped("supervisor.store.sqlite"))
    return False


def _require_same_file(cursor: sqlite3.Cursor, place: Place) -> None:
    """Raises InvalidJob for a connection to another file, also one that has attached ours. One in memory has none."""
    file = Path(_plain(cursor.execute("PRAGMA database_list").fetchone()[2] or ""))
    with contextlib.suppress(OSError):  # it was moved, or is not there yet
        if file.name and not file.samefile(place.database):
            raise InvalidJob("connection", f"its database is {file}, and that of the queue is {place.database}")


def _plain(name: str | bytes) -> str:
    """The caller's connection may return texts as bytes."""
    return name.decode() if isinstance(name, bytes) else name


def require_current(place: Place) -> None:
    """Raises StoreError for a database that is not ours, or older, or too new, or whose jobs were moved elsewhere.

    It is left untouched.
    """
    flags, current = require_version(place)
    refuse_if_unusable(flags, current, newest_version(), place.database)


def require_version(place: Place) -> tuple[dict[str, str], int]:
    """The flags, and the schema's version. Raises StoreError for a database that is not ours, or older.

    A connection with our settings would switch another program's database to WAL before it could check.
    """
    newest = newest_version()
    if not place.database.exists():
        raise StoreError(f"{place.database}: there is no such database")
    current, flags = _looked_at(place)
    if current < newest:
        problem = f"has schema {current}, older than {newest}" if current else "has no job tables yet"
        raise StoreError(f"{place.database}: the database {problem}; `supervisor migrate` fixes that")
    return flags, current


def has_tables(place: Place) -> bool:
    """Whether an existing database has ours, of whatever version."""
    return _looked_at(place)[0] > 0


def _looked_at(place: Place) -> tuple[int, dict[str, str]]:
    try:
        with contextlib.closing(
            sqlite3.connect(f"{place.database.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT)
        ) as raw:
            current = _version(raw)
            return current, dict(raw.execute(QUERIES.flags)) if current else {}
    except sqlite3.Error as error:
        raise translated(error, place.database) from None


def newest_version() -> int:
    """The schema that this program creates."""
    return shipped("supervisor.store.sqlite")[-1].version


def readable_version(raw: sqlite3.Connection, path: Path) -> int:
    """The schema of an open database. Raises StoreError for one that is not ours or too new, and sqlite3.Error."""
    current = _version(raw)
    if not current:
        raise StoreError(f"{path}: the database has no job tables")
    refuse_if_unusable(dict(raw.execute(QUERIES.flags)), current, newest_version(), path)
    return current


def bring_up_to_date(raw: sqlite3.Connection, plan: Sequence[Migration]) -> list[int]:
    """Inside the caller's transaction. Returns the versions applied."""
    applied = []
    current = _version(raw)  # again, now that no other program can migrate
    for migration in plan:
        if migration.version > current:
            if migration.name == _FENCES:
                repair.renumber(raw)
            for statement in statements(migration.sql):
                apply(raw, statement)
            applied.append(migration.version)
    if applied:
        stamp(raw, plan)
    return applied


def apply(raw: sqlite3.Connection, statement: str) -> None:
    """Run one statement of a migration; a column of `jobs` that exists already, an application's, is not added."""
    column = column_added(statement, "jobs")
    if column is None or not raw.execute(QUERIES.has_column, {"table": "jobs", "column": column}).fetchone():
        raw.execute(statement)


def stamp(raw: sqlite3.Connection | sqlite3.Cursor, plan: Sequence[Migration]) -> None:
    """Store the schema's version, and which programs may write."""
    for key, value in flags_of(plan, _ALL_CONTRACT).items():
        raw.execute(QUERIES.set_meta, {"key": key, "value": value})


def version(connection: Connection) -> int:
    """The schema's version, 0 for an empty database. Raises StoreError for tables that are not ours."""
    try:
        return _version(connection.raw)
    except sqlite3.Error as error:
        raise translated(error, connection.place.database) from None


def _version(raw: sqlite3.Connection) -> int:
    tables = {row[0] for row in raw.execute(QUERIES.tables)}
    if "job_meta" in tables:
        row = raw.execute(QUERIES.meta, {"key": "schema_version"}).fetchone()
        return int(row[0]) if row else 0
    if "jobs" in tables:
        raise StoreError("the database has a `jobs` table of another program; `supervisor adopt` can take it over")
    return 0


def back_up(connection: Connection, target: Path) -> None:
    """An online copy of the whole database into a new file with the same owner and mode.

    Raises StoreError if the target exists or cannot be written; nothing is left half-written.
    """
    if target.exists():
        raise StoreError(f"{target}: it exists already; a backup never overwrites a file")
    with _copied(connection, target) as partial:
        _publish(partial, target)


def _back_up(connection: Connection, current: int) -> None:
    """Keep a copy with the older schema, unless another program has migrated in the meantime and kept one."""
    target = connection.place.dated(f"before-{current + 1}")
    with _copied(connection, target) as partial:
        with contextlib.closing(sqlite3.connect(partial)) as copy:
            copied = _version(copy)
        if copied == current:
            with contextlib.suppress(FileExistsError):
                _publish(partial, target)


@contextlib.contextmanager
def _copied(connection: Connection, target: Path) -> Iterator[Path]:
    """A complete copy under a unique name, which is removed in the end."""
    partial = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            connection.place.share_like_database(partial)
            connection.raw.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").fetchall()
        yield partial
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"{target}: the backup failed: {error}") from None
    finally:
        partial.unlink(missing_ok=True)


def _publish(partial: Path, target: Path) -> None:
    """Give the copy its name. Raises FileExistsError if that exists by now."""
    try:
        os.link(partial, target)  # a rename would overwrite a file that has just appeared
    except FileExistsError:
        raise
    except OSError:
        partial.rename(target)  # a file system without links
