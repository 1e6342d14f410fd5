"""The database as a whole: its schema, created, brought up to date, or refused if it is not ours; its copies; and
whether the file is damaged.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from supervisor.domain.errors import InvalidJob, StoreError
from supervisor.store.migrate import Known, Migration, flags_of, known, shipped, statements
from supervisor.store.moving import KEYS
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT, is_general, result_code, translated
from supervisor.store.sqlite.files import DatabaseFiles, uri

MINIMUM_SQLITE = (3, 37, 0)  # STRICT tables

_PACKAGE = "supervisor.store.sqlite"
_ADDED = re.compile(r"TABLE jobs ADD COLUMN (\w+)")
_PART = re.compile(r"^(CREATE|DROP) (?:UNIQUE )?(?:INDEX|VIEW|TRIGGER) (\w+)", re.M)

Raw = sqlite3.Connection | sqlite3.Cursor


def migrate(connection: Connection, available: Sequence[Migration] | None = None) -> list[int]:
    """Bring the schema up to date; returns the versions applied now.

    Two programs may do so at the same time: one migrates, the other finds it done. An older schema is copied to
    `<database>.before-<version>` first. Raises StoreError for a `jobs` table that is not ours, and for a
    newer schema that declares this program too old for it.
    """
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; at least 3.37 is needed")
    files = connection.files
    try:
        found = _look(connection.raw, files.database, available)
    except sqlite3.Error as error:
        raise translated(error, files.database) from None
    if not found.missing:
        found.require_usable()
        if found.version == found.ours:
            _make_missing(connection, found.plan)
        return []
    if found.version:
        _back_up(connection, found.version)
    with connection.write() as raw:
        return bring_up_to_date(raw, files, available)


def bring_up_to_date(raw: Raw, files: DatabaseFiles, plan: Sequence[Migration] | None = None) -> list[int]:
    """Inside the caller's transaction. Returns the versions applied."""
    found = _look(raw, files.database, plan)  # again, now that no other program can migrate
    for one in found.missing:
        for statement in statements(one.sql):
            # A column of `jobs` that exists already, an application's, is not added.
            added = _ADDED.search(statement)
            if added is None or not raw.execute(QUERIES.has_column, {"table": "jobs", "column": added[1]}).fetchone():
                raw.execute(statement)
    if found.missing:
        stamp(raw, found.plan)
    return [one.version for one in found.missing]


def stamp(raw: Raw, plan: Sequence[Migration]) -> None:
    """Store the schema's version, and which programs may write."""
    for key, value in flags_of(plan).items():
        raw.execute(QUERIES.set_meta, {"key": key, "value": value})


def _make_missing(connection: Connection, plan: Sequence[Migration]) -> None:
    """Recreate indexes, views and triggers that were dropped: without one of them nothing works."""
    there = {name for (name,) in connection.rows(QUERIES.named_parts)}
    wanted: dict[str, Migration] = {}  # from the text: every program checks at its first use
    for migration in plan:
        for verb, name in _PART.findall(migration.sql):
            if verb == "CREATE":
                wanted[name] = migration
            else:
                wanted.pop(name, None)
    missing = wanted.keys() - there
    if not missing:
        return
    with connection.write() as raw:
        for migration in dict.fromkeys(wanted.values()):
            for statement in statements(migration.sql):
                part = _PART.search(statement)
                if part is not None and part[1] == "CREATE" and part[2] in missing:
                    raw.execute(statement)


# Looking at the version


def _look(raw: Raw, where: object, plan: Sequence[Migration] | None = None) -> Known:
    """Raises StoreError for tables that are not ours, and sqlite3.Error."""
    return known(raw.execute, QUERIES, where, plan or shipped(_PACKAGE), "`supervisor adopt` can take it over")


def _open(files: DatabaseFiles, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(uri(files.database, mode), uri=True, timeout=BUSY_TIMEOUT)


def require_version(files: DatabaseFiles) -> Known:
    """Raises StoreError for a database that is not ours, or older. A connection with our settings would switch another
    program's database to WAL before it could look.
    """
    if not files.database.exists():
        raise files.missing()
    try:
        with closing(_open(files, "ro")) as raw:
            return _look(raw, files.database).require_version()
    except sqlite3.Error as error:
        raise translated(error, files.database) from None


def readable_version(raw: sqlite3.Connection, path: Path) -> int:
    """The schema of an open database. Raises StoreError for one that is not ours or too new, and sqlite3.Error."""
    found = _look(raw, path)
    if not found.version:
        raise StoreError(f"{path}: the database has no job tables")
    return found.require_usable().version


def prepare(raw: sqlite3.Connection, files: DatabaseFiles, *, create: bool, migrate: Callable[[], object]) -> bool:
    """For a caller's connection, which may be in a transaction and hold the write lock, so nothing waits here.

    Returns whether the tables exist even if that transaction is rolled back.
    """
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may be anything
    _require_same_file(cursor, files)
    found = _look(cursor, files.database)
    if not found.missing:
        found.require_usable()
        return True
    if not raw.in_transaction and (create or found.version):
        migrate()
        return True
    if found.version or not create:
        raise found.too_late(
            ", and your transaction is open; call Queue.create_tables(), or run `supervisor migrate`, before it begins"
        )
    bring_up_to_date(cursor, files)
    return False


def _require_same_file(cursor: sqlite3.Cursor, files: DatabaseFiles) -> None:
    """Raises InvalidJob for a connection to another file, also one that has attached ours. One in memory has none."""
    file = Path(os.fsdecode(cursor.execute("PRAGMA database_list").fetchone()[2] or ""))
    with contextlib.suppress(OSError):  # it was moved, or is not there yet
        if file.name and not file.samefile(files.database):
            raise InvalidJob("connection", f"its database is {file}, and that of the queue is {files.database}")


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
    target = connection.files.dated(f"before-{current + 1}")
    with _copied(connection, target) as partial:
        with closing(sqlite3.connect(partial)) as copy:
            copied = _look(copy, connection.files.database).version
        if copied == current:
            with contextlib.suppress(FileExistsError):
                _publish(partial, target)


@contextlib.contextmanager
def _copied(connection: Connection, target: Path) -> Iterator[Path]:
    """A complete copy under a unique name, which is removed in the end."""
    partial = target.with_name(f".{target.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        with closing(sqlite3.connect(partial, isolation_level=None)) as copy:
            connection.files.share(partial)
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


CHECK = "PRAGMA quick_check"
_OF_ROWS = ("CHECK constraint failed", "NULL value in", "NUMERIC value in", "TEXT value in")
_STEPS = 10_000  # of SQLite's machine between two looks at the clock


def is_sound(files: DatabaseFiles, seconds: float) -> bool:
    """Run SQLite's quick check over the file; where an application has tables in it, too, over ours first.

    For at most so many seconds; returns whether it came to the end of the file. Raises StoreError that names
    the check and what it found, or if the file cannot be opened.
    """
    deadline = time.monotonic() + seconds
    try:
        with closing(_open(files, "rw")) as raw:
            raw.set_progress_handler(lambda: time.monotonic() > deadline, _STEPS)
            tables = {name for (name,) in raw.execute(QUERIES.tables) if not name.startswith("sqlite_")}
            first = [f"({table})" for table in KEYS if table in tables] if tables.difference(KEYS) else []
            # The check is about the file, not about the contents of rows.
            raw.execute("PRAGMA ignore_check_constraints = ON")
            for what in (*first, ""):
                _check(raw, what, files)
    except sqlite3.Error as error:
        code = result_code(error)
        if code == sqlite3.SQLITE_INTERRUPT:
            return False
        if code == sqlite3.SQLITE_CORRUPT:
            raise _damaged(str(error), files) from None
        raise translated(error, files.database) from None
    return True


def _check(raw: sqlite3.Connection, what: str, files: DatabaseFiles) -> None:
    try:
        found = [text for (text,) in raw.execute(f"{CHECK}{what}") if not text.startswith(_OF_ROWS)]
    except sqlite3.Error as error:
        if not is_general(error):
            raise
        return  # an index or a column of the application's needs a function or a collation of its own
    if found and found[0] != "ok":
        raise _damaged(found[0], files)


def _damaged(found: str, files: DatabaseFiles) -> StoreError:
    found = " ".join(found.replace("*** in database main ***", "").split())
    return StoreError(
        f"{files.database}: the file is damaged, as {CHECK} found: {found}; "
        "stop every program that uses it and restore a backup, or save what can be read with `.recover`"
    )
