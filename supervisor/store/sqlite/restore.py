"""Replaces the database with a copy, so that a kill at any moment leaves either the old or the new one complete.

The copy is copied beside the database and checked there; the database is brought into one file, which is possible only
while nobody else uses it; it gets a second name; and one rename does the rest.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterator
from pathlib import Path

from supervisor.domain.errors import Conflict, StoreError
from supervisor.store.base import RestoreReport
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import QUERIES
from supervisor.store.sqlite.driver_errors import is_busy, translated
from supervisor.store.sqlite.files import DatabaseFiles, uri
from supervisor.store.sqlite.producer import ownership
from supervisor.system import failpoints

_PATIENCE = 1.0  # seconds for a program that is about to close it


def restore(files: DatabaseFiles, copy: Path) -> RestoreReport:
    """Raises Conflict while a supervisor is running or a program uses the database, and StoreError for a copy that is
    damaged, not ours or too new; then nothing is changed.
    """
    _refuse_if_supervised(files)
    partial = files.database.with_name(f".{files.database.name}.restore-{uuid.uuid4().hex[:8]}")
    try:
        jobs, version = _prepare(copy, partial)
        if files.database.exists():
            files.share(partial)
        else:
            partial.chmod(0o600)
        _sync(partial)
        failpoints.reach("restore.copied")
        with _for_us_alone(files):
            failpoints.reach("restore.gathered")
            _refuse_if_supervised(files)
            kept = _keep(files)
            failpoints.reach("restore.kept")
            partial.replace(files.database)
            _sync(files.database.parent)
            failpoints.reach("restore.replaced")
    except OSError as error:
        raise StoreError(f"{partial.parent}: the copy cannot be put there: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)
    return RestoreReport(jobs=jobs, schema=version, kept=kept)


def _refuse_if_supervised(files: DatabaseFiles) -> None:
    if pids := ownership(files).holders():
        raise Conflict(f"supervisor {', '.join(map(str, pids))} is running on {files.database}; stop it first")


def _prepare(copy: Path, partial: Path) -> tuple[int, int]:
    """Copy it, with the log beside it, into one file. Returns (number of jobs, schema). Raises StoreError unless it is
    undamaged, ours, and not too new for this program.
    """
    try:
        with (
            contextlib.closing(sqlite3.connect(uri(copy.absolute(), "ro"), uri=True)) as reader,
            contextlib.closing(sqlite3.connect(partial, isolation_level=None)) as raw,
        ):
            reader.backup(raw)
            raw.execute("PRAGMA journal_mode = DELETE").fetchall()
            [first, *_] = raw.execute("PRAGMA integrity_check(1)").fetchall()
            if first != ("ok",):
                raise StoreError(f"{copy}: the copy is damaged, as PRAGMA integrity_check found: {first[0]}")
            version = schema.readable_version(raw, copy)
            # Ids assigned after the copy was made will be assigned again: they belong to another epoch.
            raw.execute(QUERIES.make_epoch)
            return int(raw.execute(QUERIES.count_jobs).fetchone()[0]), version
    except sqlite3.Error as error:
        raise translated(error, copy) from None


@contextlib.contextmanager
def _for_us_alone(files: DatabaseFiles) -> Iterator[None]:
    """Bring the database into one file and lock it, so that nobody opens it meanwhile, unless it is missing or damaged.

    Raises Conflict if a process uses it, in any container: SQLite removes its log only for the last connection.
    """
    if not files.database.exists():
        yield
        return
    with contextlib.closing(
        sqlite3.connect(uri(files.database, "rw"), uri=True, timeout=_PATIENCE, isolation_level=None)
    ) as raw:
        try:
            raw.execute("PRAGMA journal_mode = DELETE").fetchall()
            raw.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if is_busy(error):
                raise Conflict(f"{files.database} is open elsewhere; stop every program that uses it first") from None
        yield


def _keep(files: DatabaseFiles) -> Path | None:
    """Give the current database a second name; files beside a damaged one must be gone before the new one comes."""
    database = files.database
    beside = [path for end in ("-wal", "-shm", "-journal") if (path := Path(f"{database}{end}")).exists()]
    if not database.exists() and not beside:
        return None
    kept = files.unused("before-restore")
    if database.exists():  # or it is lost, and a log is left
        try:
            os.link(database, kept)
        except OSError:
            shutil.copy2(database, kept)  # a file system without links
    for path in beside:
        with contextlib.suppress(FileNotFoundError):
            path.rename(f"{kept}{path.name.removeprefix(database.name)}")
    _sync(database.parent)
    return kept


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
