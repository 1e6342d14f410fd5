"""Replaces the database with a copy, so that a kill at any moment leaves either the old or the new one complete.

The copy is copied beside the database and checked there; the database is brought into one file, which is possible only
while nobody else has it open; it gets a second name; and one rename does the rest.
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
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import QUERIES
from supervisor.store.sqlite.driver_errors import is_busy, translated
from supervisor.store.sqlite.maintenance import ownership
from supervisor.store.sqlite.place import Place
from supervisor.store.values import RestoreReport
from supervisor.system import failpoints

_BESIDE = ("-wal", "-shm", "-journal")
_PATIENCE = 1.0  # seconds for a program that is about to close it


def restore(place: Place, copy: Path) -> RestoreReport:
    """Raises Conflict while a supervisor is running or a program has the database open, and StoreError for a copy that
    is damaged, not ours or too new; then nothing is changed.
    """
    _refuse_if_in_use(place)
    with _made_anew(place, copy) as partial:
        jobs, version = _examined(partial, copy)
        _renew_epoch(partial)
        failpoints.reach("restore.copied")
        with _for_us_alone(place) as gathered:
            failpoints.reach("restore.gathered")
            _refuse_if_in_use(place)
            kept = _keep(place, gathered)
            failpoints.reach("restore.kept")
            partial.replace(place.database)
            _sync(place.database.parent)
            failpoints.reach("restore.replaced")
    return RestoreReport(jobs=jobs, schema=version, kept=kept)


def _refuse_if_in_use(place: Place) -> None:
    if pids := ownership(place).holders():
        raise Conflict(f"supervisor {', '.join(map(str, pids))} is running on {place.database}; stop it first")
    if pids := _users(place):
        described = ", ".join(f"{pid} ({_name(pid)})" for pid in pids[:5])
        raise Conflict(f"{place.database} is open in process {described}; stop every program that uses it first")


def _users(place: Place) -> list[int]:
    """Other processes that have the file, or one beside it, open, as far as this user can see."""
    ours = {(found.st_dev, found.st_ino) for path in _files(place) if (found := _stat(path)) is not None}
    return sorted(
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdecimal() and int(process.name) != os.getpid() and not ours.isdisjoint(_open_files(process))
    )


def _open_files(process: Path) -> Iterator[tuple[int, int]]:
    with contextlib.suppress(OSError):
        for descriptor in (process / "fd").iterdir():
            found = _stat(descriptor)
            if found is not None:
                yield found.st_dev, found.st_ino


def _files(place: Place) -> list[Path]:
    return [place.database, *(Path(f"{place.database}{suffix}") for suffix in _BESIDE)]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return "gone"


@contextlib.contextmanager
def _made_anew(place: Place, copy: Path) -> Iterator[Path]:
    """A complete copy of the copy, in one file beside the database; removed in the end unless it was renamed."""
    partial = place.database.with_name(f".{place.database.name}.restore-{uuid.uuid4().hex[:8]}")
    try:
        _copy(copy, partial)
        if place.database.exists():
            place.share(partial)
        else:
            partial.chmod(0o600)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        yield partial
    except OSError as error:
        raise StoreError(f"{partial.parent}: the copy cannot be put there: {error.strerror}") from None
    finally:
        partial.unlink(missing_ok=True)


def _copy(source: Path, target: Path) -> None:
    """By SQLite, which also reads a log beside the source."""
    try:
        with (
            contextlib.closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reader,
            contextlib.closing(sqlite3.connect(target, isolation_level=None)) as writer,
        ):
            reader.backup(writer)
            writer.execute("PRAGMA journal_mode = DELETE").fetchall()
    except sqlite3.Error as error:
        raise translated(error, source) from None


def _examined(partial: Path, copy: Path) -> tuple[int, int]:
    """(number of jobs, schema). Raises StoreError unless it is undamaged, ours, and not too new for this program."""
    try:
        with contextlib.closing(sqlite3.connect(f"{partial.as_uri()}?mode=ro", uri=True)) as raw:
            [first, *_] = raw.execute("PRAGMA integrity_check(1)").fetchall()
            if first != ("ok",):
                raise StoreError(f"{copy}: the copy is damaged, as PRAGMA integrity_check found: {first[0]}")
            found = schema.readable_version(raw, copy)
            return int(raw.execute(QUERIES.count_jobs).fetchone()[0]), found
    except sqlite3.Error as error:
        raise translated(error, copy) from None


def _renew_epoch(partial: Path) -> None:
    """Ids assigned after the copy was made will be assigned again: they belong to another epoch."""
    with contextlib.closing(sqlite3.connect(partial)) as raw, raw:
        raw.execute(QUERIES.make_epoch)
    with partial.open("rb") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _for_us_alone(place: Place) -> Iterator[bool]:
    """Bring the database into one file and lock it, so that nobody opens it meanwhile.

    Yields False if that is impossible: it is missing or damaged. Raises Conflict if a process has it open, in any
    container: SQLite removes its log only for the last connection.
    """
    if not place.database.exists():
        yield False
        return
    with contextlib.closing(
        sqlite3.connect(f"{place.database.as_uri()}?mode=rw", uri=True, timeout=_PATIENCE, isolation_level=None)
    ) as raw:
        try:
            mode = raw.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
            raw.execute("BEGIN EXCLUSIVE")
        except sqlite3.Error as error:
            if is_busy(error):
                raise Conflict(f"{place.database} is open elsewhere; stop every program that uses it first") from None
            mode = "unknown"
        yield mode == "delete"


def _keep(place: Place, gathered: bool) -> Path | None:
    """Give the current database a second name; files beside a damaged one must be gone before the new one comes."""
    present = [path for path in _files(place) if path.exists()]
    if not present:
        return None
    kept = place.unused("before-restore")
    try:
        os.link(place.database, kept)
    except FileNotFoundError:
        pass  # the database itself is lost; a log may be left
    except OSError:
        shutil.copy2(place.database, kept)  # a file system without links
    for path in present:
        if path != place.database and not (gathered and path.name.endswith("-journal")):
            with contextlib.suppress(FileNotFoundError):
                path.rename(f"{kept}{path.name.removeprefix(place.database.name)}")
    _sync(place.database.parent)
    return kept


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
