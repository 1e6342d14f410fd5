"""The database: where its files are, who may use them, and what dead processes have left in it and beside it."""

from __future__ import annotations

import glob
import os
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

from supervisor.config.settings import Settings
from supervisor.domain.errors import StoreError, StoreOutdated
from supervisor.domain.text import counted, human, human_size, without_password
from supervisor.engine import open_engine
from supervisor.ops.diagnosis import LATELY, diagnose, fault, good, note, warning
from supervisor.ops.doctor import services
from supervisor.ops.doctor.configuration import open_to_all
from supervisor.ops.doctor.machine import file_system
from supervisor.ops.status import gather
from supervisor.ops.views import Finding
from supervisor.store.base import Engine, Operations
from supervisor.system import kernel

Answer = TypeVar("Answer")

_ROOM = 256 << 20  # bytes below which a disk is nearly full
_FULL = 1 << 20  # and full
_LONG_LOG = 64 << 20  # bytes; the maintainer keeps it far smaller, unless a reader blocks checkpoints
_HELD_LOG, _LONG_READ = 16 << 20, 30.0  # bytes, if a reader has blocked them for so many seconds
_LONG_HOLD = 1.0  # seconds
_MUCH_FREE = 64 << 20  # bytes
_LATE = 60.0  # seconds after which an expired claim should have been reclaimed


def examine(url: str, settings: Settings | None = None) -> list[Finding]:
    """Raises StoreError or OSError if not even the folder can be examined."""
    listening = settings.listen_database if settings is not None and settings.database == url else None
    engine = open_engine(url, listening)
    file = engine.database.file
    if file is None:  # a server's
        engine.database.exists()
        return [good("database", f"{without_password(url)} can be reached"), *inside(engine, settings)]
    if not file.parent.is_dir():
        return [fault("database", f"{file.parent}: no such folder", "create it, or correct the path")]
    found = [file_system(file.parent), *_folder(file.parent), _room(file.parent, file)]
    if not engine.database.exists():
        return [*found, note("database", f"{file} does not exist yet", "`supervisor enqueue` or `run` creates it")]
    found += [*_file(file, engine.database.folder), *_copies(file)]
    # The next three checks must come before this process opens the database: later, they would drop its locks.
    found += _held(engine)
    if not any(finding.level == "fault" for finding in found):
        found += [*_log(engine, file), *_free(file), *inside(engine, settings)]
    return found


def refuse_outdated(url: str) -> None:
    """Raises StoreOutdated. What else may be wrong with a database is not looked at."""
    try:
        engine = open_engine(url)
        if engine.database.exists():
            engine.operations().close()
    except StoreOutdated:
        raise
    except StoreError:
        return


def _folder(folder: Path) -> Iterator[Finding]:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        fact = f"{folder}: this user cannot write in the folder, where SQLite keeps its log beside the database"
        advice = f"give user {os.geteuid()} read, write and search permission on the folder"
        yield fault("permissions", fact, advice)
    elif open_to_all(folder):
        yield warning("permissions", f"{folder}: any user can write there", f"chmod o-w {folder}")


def _room(folder: Path, database: Path) -> Finding:
    free, size = shutil.disk_usage(folder).free, database.stat().st_size if database.exists() else 0
    fact = f"{human_size(free)} free"
    if free < _FULL:
        return fault("disk", fact, "free some space: no job can be enqueued or finished")
    if free < max(_ROOM, size):
        advice = "free some space: on a full disk no job can be enqueued, and a backup needs the size of the database"
        return warning("disk", fact, advice)
    return good("disk", fact)


def _file(database: Path, folder: Path) -> Iterator[Finding]:
    """Who may use the database, its log and the log's index, and the folder of supervisors; and how long the log is."""
    if not database.is_file():
        yield fault("database", f"{database} is not a file", "correct the path")
        return
    mode = database.stat().st_mode & 0o777
    if not os.access(database, os.R_OK | os.W_OK):
        yield fault("permissions", f"{database}: this user cannot read and write it", "change its owner or mode")
    elif mode & 0o002:
        advice = f"chmod o-w {database}: a user who can write jobs controls what your handlers do"
        yield fault("permissions", f"{database}: any user can write to it", advice)
    elif mode & 0o004:
        advice = f"chmod o-r {database}, unless every user may see the payloads"
        yield note("permissions", f"{database}: every user of this machine can read it", advice)
    else:
        yield good("permissions", f"{database} (mode {mode:o}) can be read and written")
    log = Path(f"{database}-wal")
    for path in filter(Path.exists, (log, Path(f"{database}-shm"), folder)):
        if not os.access(path, os.R_OK | os.W_OK):
            advice = f"give it the owner and mode of the database: chown --reference={database} {path}"
            yield fault("permissions", f"{path}: this user cannot read and write it", advice)
        elif path.stat().st_mode & 0o006 & ~mode:
            yield fault("permissions", f"{path}: its permissions are wider than the database's", f"chmod o= {path}")


def _copies(database: Path) -> Iterator[Finding]:
    """Those kept by upgrades, adoptions and restores, and incomplete ones of interrupted commands."""
    folder, name = database.parent, glob.escape(database.name)
    if kept := sorted(folder.glob(f"{name}.before-*")):
        size = human_size(sum(path.stat().st_size for path in kept))
        fact = f"{len(kept)} kept beside the database, {size}: {_named(kept)}"
        yield note("copies", fact, "delete those you do not need")
    if halves := sorted([*folder.glob(f".*{name}*.partial-*"), *folder.glob(f".{name}.restore-*")]):
        advice = "delete them while no backup, migration or restore is running"
        yield note("copies", f"incomplete copies: {_named(halves)}", advice)


def _held(engine: Engine) -> Iterator[Finding]:
    """Whether a process blocks all other writers."""
    first = _lasting(engine.ownership.writers().database_holder)
    if first is not None:
        fact = f"{_process(first.pid)} holds the write lock without committing, so no other process can write"
        advice = "end that program or its transaction; if it is a worker, the supervisor ends it after its job"
        yield fault("database", fact, advice)


def _lasting(ask: Callable[[], Answer | None]) -> Answer | None:
    """Who holds a lock, if it is the same for a while: a normal transaction lasts milliseconds."""
    first, until = ask(), time.monotonic() + _LONG_HOLD
    while first is not None and time.monotonic() < until:
        time.sleep(0.05)
        if ask() != first:
            return None
    return first


def _log(engine: Engine, database: Path) -> Iterator[Finding]:
    log = Path(f"{database}-wal")
    if not log.exists() or (size := log.stat().st_size) <= _HELD_LOG:
        return
    fact, pid = f"{log.name} has grown to {human_size(size)}", _lasting(engine.ownership.writers().reader)
    # A checkpoint writes to the file: if only the log was written for long, the reader has blocked it for as long.
    blocked = log.stat().st_mtime - database.stat().st_mtime
    if pid is not None and (size > _LONG_LOG or blocked > _LONG_READ):
        advice = "end that program or its transaction; a running supervisor then truncates the log"
        yield warning("database", f"{fact} because {_process(pid)} keeps a read transaction open", advice)
    elif size > _LONG_LOG:
        advice = "a running supervisor truncates it, unless a program keeps a read transaction open: ask again later"
        yield warning("database", fact, advice)


def _free(database: Path) -> Iterator[Finding]:
    """By the file's first bytes: the size of a page, how many there are, how many of them are free, and auto_vacuum."""
    with database.open("rb") as file:
        header = file.read(100)
    if len(header) < 100:
        return
    (size,), (pages, _, free) = struct.unpack_from(">H", header, 16), struct.unpack_from(">3I", header, 28)
    size = 65536 if size == 1 else size
    if free * size < max(_MUCH_FREE, pages * size // 2):
        return
    fact = f"{human_size(free * size)} of its {human_size(pages * size)} are free"
    if any(header[52:56]):
        yield note("database", fact, "a running supervisor gives most of it back, some megabytes a minute")
    else:
        command = f"sqlite3 {database} 'PRAGMA auto_vacuum = INCREMENTAL; VACUUM'"
        advice = f"they are used again; to give them back, while no program uses the file: {command}"
        yield note("database", fact, advice)


def _process(pid: int) -> str:
    command = kernel.command_of(pid)
    return f"process {pid}{f' ({command})' if command else ''}" if pid else "a process of another container"


def inside(engine: Engine, settings: Settings | None) -> Iterator[Finding]:
    """What `status` finds, too, and leftovers. Nothing is changed."""
    try:
        operations = engine.operations()
    except StoreOutdated as error:
        yield fault("database", str(error), "see the error; nothing was changed")
        return
    except StoreError as error:
        advice = "`supervisor migrate` or `supervisor run` makes the tables; nothing was changed"
        yield (note if engine.database.file is None else fault)("database", str(error), advice)
        return
    with closing(operations):
        seen = gather(engine, operations, configured=() if settings is None else settings.pools.values())
        yield good("database", f"the schema is current, {counted(seen.jobs['pending'], 'job is', 'jobs are')} pending")
        # The doctor is also asked before the supervisor is started.
        found = [finding for finding in diagnose(seen) if finding.name != "no_supervisor"]
        living = {one.id for one in seen.supervisors if one.alive is not False}
        found += [*_strays(engine, operations), *_claims(operations, living), *_batches(operations, seen.time)]
        yield from found
        if not any(finding.about == "leftovers" for finding in found):
            yield good("leftovers", "none")
        listening = settings is not None and settings.listen_database is not None
        yield from services.server(operations, seen, listening=listening)
        if settings is not None and settings.admin is not None:
            yield from services.admin(settings.admin, seen)


def _strays(engine: Engine, operations: Operations) -> Iterator[Finding]:
    if engine.database.file is None:
        return
    folder = engine.database.folder
    records = operations.registry.supervisors()
    ours = tuple(Path(path).name for record in records for path in (record.owner_lock, record.scoreboard))
    # Other files of a scoreboard have its name with a suffix.
    found = sorted([*folder.glob("owner-*.lock"), *folder.glob("scoreboard-*")])
    if stray := [path for path in found if not path.name.startswith(ours)]:
        fact = f"files of supervisors that have ended: {_named(stray)}"
        yield note("leftovers", fact, f"delete them from {folder} while no supervisor is starting")


def _claims(operations: Operations, living: set[str]) -> Iterator[Finding]:
    found = operations.statistics.anomalies(operations.statistics.now() - _LATE)
    start = "" if living else "start a supervisor: "
    if abandoned := sum(count for owner, count in found.held.items() if owner not in living):
        fact = f"{counted(abandoned, 'job is', 'jobs are')} still running in workers that have ended"
        advice = f"{start}a supervisor that starts recovers them immediately, a running one within its lock_time"
        yield note("leftovers", fact, advice)
    if found.expired:
        fact = f"{counted(found.expired, 'job has a claim', 'jobs have claims')} that expired over a minute ago"
        advice = f"{start}it reclaims them; if one is running, see `supervisor status` for its problem"
        yield warning("leftovers", fact, advice)


def _batches(operations: Operations, now: float) -> Iterator[Finding]:
    """Those that their programs have left open, perhaps because they were killed."""
    for one in operations.batches.latest():
        if one.state == "open" and not one.waiting and now - one.created_at > LATELY:
            fact = f"batch {one.id} has been open for {human(now - one.created_at)}, and all its jobs have ended"
            yield note("batches", fact, f"`supervisor jobs batch {one.id} --close` says that these are all")


def _named(paths: list[Path]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(path.name for path in paths[:5]) + more
