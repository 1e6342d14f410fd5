"""The schema's version: creating it, bringing it up to date, refusing tables that are not ours."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from supervisor.domain.errors import InvalidJob, NoTables, StoreError
from supervisor.store.migrate import Known, Migration, flags_of, known, shipped, statements
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT, translated
from supervisor.store.sqlite.place import Place

MINIMUM_SQLITE = (3, 37, 0)  # STRICT tables

_PACKAGE = "supervisor.store.sqlite"
_ADDED = re.compile(r"TABLE jobs ADD COLUMN (\w+)")
_PART = re.compile(r"^(CREATE|DROP) (?:UNIQUE )?(?:INDEX|VIEW|TRIGGER) (\w+)", re.M)

Raw = sqlite3.Connection | sqlite3.Cursor


def newest_version() -> int:
    """The schema that this program creates."""
    return shipped(_PACKAGE)[-1].version


def migrate(connection: Connection, available: Sequence[Migration] | None = None) -> list[int]:
    """Bring the schema up to date; returns the versions applied now.

    Two programs may do so at the same time: one migrates, the other finds it done. An older schema is copied to
    `<database>.before-<version>` first. Raises StoreError for a `jobs` table that is not ours, and for a
    newer schema that declares this program too old for it.
    """
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; at least 3.37 is needed")
    plan, place = shipped(_PACKAGE) if available is None else available, connection.place
    try:
        found = _look(connection.raw, place, plan)
    except sqlite3.Error as error:
        raise translated(error, place.database) from None
    if found.version >= found.ours:
        found.require_usable()
        if found.version == found.ours:
            _make_missing(connection, plan)
        return []
    if found.version:
        _back_up(connection, found.version)
    with connection.write() as raw:
        return bring_up_to_date(raw, place, plan)


def bring_up_to_date(raw: Raw, place: Place, plan: Sequence[Migration] | None = None) -> list[int]:
    """Inside the caller's transaction. Returns the versions applied."""
    plan = shipped(_PACKAGE) if plan is None else plan
    current = _look(raw, place, plan).version  # again, now that no other program can migrate
    applied = [one for one in plan if one.version > current]
    for one in applied:
        for statement in statements(one.sql):
            apply(raw, statement)
    if applied:
        stamp(raw, plan)
    return [one.version for one in applied]


def apply(raw: Raw, statement: str) -> None:
    """Run one statement of a migration; a column of `jobs` that exists already, an application's, is not added."""
    added = _ADDED.search(statement)
    if added is None or not raw.execute(QUERIES.has_column, {"table": "jobs", "column": added[1]}).fetchone():
        raw.execute(statement)


def stamp(raw: Raw, plan: Sequence[Migration]) -> None:
    """Store the schema's version, and which programs may write."""
    for key, value in flags_of(plan).items():
        raw.execute(QUERIES.set_meta, {"key": key, "value": value})


def _make_missing(connection: Connection, plan: Sequence[Migration]) -> None:
    """Recreate indexes, views and triggers that were dropped: without one of them nothing works."""
    there = {name for (name,) in connection.rows(QUERIES.named_parts)}
    if _parts_of(plan) <= there:
        return
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        bring_up_to_date(fresh, connection.place, plan)
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


# Looking at the version


def _look(raw: Raw, place: Place, plan: Sequence[Migration] | None = None) -> Known:
    """Raises StoreError for tables that are not ours, and sqlite3.Error."""
    plan = shipped(_PACKAGE) if plan is None else plan
    return known(raw.execute, QUERIES, place.database, plan, "`supervisor adopt` can take it over")


def _opened(place: Place) -> Known:
    """The same of a file. A connection with our settings would switch another program's database to WAL before it could
    look.
    """
    try:
        with contextlib.closing(
            sqlite3.connect(f"{place.database.as_uri()}?mode=ro", uri=True, timeout=BUSY_TIMEOUT)
        ) as raw:
            return _look(raw, place)
    except sqlite3.Error as error:
        raise translated(error, place.database) from None


def version(connection: Connection) -> int:
    """The schema's version, 0 for an empty database. Raises StoreError for tables that are not ours."""
    return _look(connection.raw, connection.place).version


def require_version(place: Place) -> Known:
    """Raises StoreError for a database that is not ours, or older."""
    if not place.database.exists():
        raise NoTables(f"{place.database}: there is no such database")
    return _opened(place).require_version()


def require_current(place: Place) -> None:
    """Raises StoreError for a database that is not ours, or older, or too new, or whose jobs were moved elsewhere.

    It is left untouched.
    """
    require_version(place).require_usable()


def readable_version(raw: sqlite3.Connection, path: Path) -> int:
    """The schema of an open database. Raises StoreError for one that is not ours or too new, and sqlite3.Error."""
    found = known(raw.execute, QUERIES, path, shipped(_PACKAGE), "`supervisor adopt` can take it over")
    if not found.version:
        raise StoreError(f"{path}: the database has no job tables")
    return found.require_usable().version


def prepare(raw: sqlite3.Connection, place: Place, *, create: bool, migrate: Callable[[], object]) -> bool:
    """For a caller's connection, which may be in a transaction and hold the write lock, so nothing waits here.

    Returns whether the tables exist even if that transaction is rolled back.
    """
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may be anything
    _require_same_file(cursor, place)
    found = _look(cursor, place)
    if found.version >= found.ours:
        found.require_usable()
        return True
    if not raw.in_transaction and (create or found.version):
        migrate()
        return True
    if found.version or not create:
        raise found.too_late(
            ", and your transaction is open; call Queue.create_tables(), or run `supervisor migrate`, before it begins"
        )
    bring_up_to_date(cursor, place)
    return False


def _require_same_file(cursor: sqlite3.Cursor, place: Place) -> None:
    """Raises InvalidJob for a connection to another file, also one that has attached ours. One in memory has none."""
    file = Path(os.fsdecode(cursor.execute("PRAGMA database_list").fetchone()[2] or ""))
    with contextlib.suppress(OSError):  # it was moved, or is not there yet
        if file.name and not file.samefile(place.database):
            raise InvalidJob("connection", f"its database is {file}, and that of the queue is {place.database}")


# Copies


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
            copied = _look(copy, connection.place).version
        if copied == current:
            with contextlib.suppress(FileExistsError):
                _publish(partial, target)


@contextlib.contextmanager
def _copied(connection: Connection, target: Path) -> Iterator[Path]:
    """A complete copy under a unique name, which is removed in the end."""
    partial = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        with contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            connection.place.share(partial)
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
