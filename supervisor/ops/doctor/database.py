"""The database: where its files are, who may use them, and what dead processes have left in it and beside it."""

from __future__ import annotations

import glob
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.domain.errors import StoreError, StoreOutdated
from supervisor.domain.text import counted, human_size, without_password
from supervisor.engine import open_engine
from supervisor.ops.diagnosis import Finding, diagnose, fault, good, note, warning
from supervisor.ops.doctor import services
from supervisor.ops.doctor.configuration import open_to_all
from supervisor.ops.doctor.machine import file_system
from supervisor.ops.status import gather
from supervisor.store.base import Engine, Operations
from supervisor.system import kernel

_ROOM = 256 << 20  # bytes below which a disk is nearly full
_FULL = 1 << 20  # and full
_LONG_LOG = 64 << 20  # bytes; the maintainer keeps it far smaller, unless a reader blocks checkpoints
_LONG_HOLD = 1.0  # seconds
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
    found += _held(engine)  # before this process opens the database: later, this check would drop its locks
    if not any(finding.level == "fault" for finding in found):
        found += inside(engine, settings)
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
    if log.exists() and (size := log.stat().st_size) > _LONG_LOG:
        why = "a program has kept a read transaction open for minutes, or no supervisor is running"
        advice = "end that transaction; a running supervisor then truncates the log"
        yield warning("database", f"its log (-wal) has grown to {human_size(size)}: {why}", advice)


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
    """Whether a process blocks all other writers. A normal transaction lasts milliseconds."""
    writers = engine.ownership.writers()
    first, until = writers.database_holder(), time.monotonic() + _LONG_HOLD
    while first is not None and time.monotonic() < until:
        time.sleep(0.05)
        if writers.database_holder() != first:
            return
    if first is not None:
        command = kernel.command_of(first.pid)
        who = f"pid {first.pid}{f': {command}' if command else ''}" if first.pid else "a process of another container"
        fact = f"a process holds the write lock without committing, so no other process can write: {who}"
        advice = "end that program or its transaction; if it is a worker, the supervisor ends it after its job"
        yield fault("database", fact, advice)


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
        found += [*_strays(engine, operations), *_claims(operations, living)]
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


def _named(paths: list[Path]) -> str:
    more = f" and {len(paths) - 5} more" if len(paths) > 5 else ""
    return ", ".join(path.name for path in paths[:5]) + more
