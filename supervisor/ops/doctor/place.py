"""The database's location: its file system, free space and permissions."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from supervisor.config.checks import of_server
from supervisor.config.settings import Settings
from supervisor.domain.errors import StoreError, StoreOutdated
from supervisor.domain.text import human_size, without_password
from supervisor.engine import open_engine
from supervisor.ops.diagnosis import Finding, fault, good, note, warning
from supervisor.store.base import Engine
from supervisor.system import kernel

# Names as in /proc/self/mounts.
NETWORK = re.compile(
    r"9p|afs|afpfs|beegfs|ceph|cifs|fuse\.(ceph|glusterfs|rclone|s3fs|sshfs)|gfs2?|glusterfs|gpfs|lustre|"
    r"ncpfs|nfs[34]?|ocfs2|orangefs|pvfs2|smb3|smbfs|virtiofs"
)
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_ROOM = 256 << 20  # bytes below which a disk is nearly full
_LONG_LOG = 64 << 20  # bytes; the maintainer keeps it far smaller, unless a reader blocks checkpoints
_LONG_HOLD = 1.0  # seconds
_BESIDE = ("-wal", "-shm")
_SECRET = re.compile(r"(?i)token|secret|passw|credential|api_?key|private")


def examine(url: str, settings: Settings | None = None) -> list[Finding]:
    """Raises StoreError or OSError if not even the folder can be examined."""
    listening = settings.listen_database if settings is not None and settings.database == url else None
    engine = open_engine(url, listening)
    database = engine.database.file
    if database is None:  # a server's
        engine.database.exists()
        from supervisor.ops.doctor import server  # `run` needs none of it

        reached = good("database", f"{without_password(url)} can be reached")
        return [reached, *server.examine(engine, listening=listening is not None)]
    folder = database.parent
    if not folder.is_dir():
        return [fault("database", f"{folder}: no such folder", "create it, or correct the path")]
    found = [file_system(folder), *_folder_permissions(folder), _room(folder, database)]
    if not engine.database.exists():
        advice = "`supervisor enqueue` or `supervisor run` creates it"
        return [*found, note("database", f"{database} does not exist yet", advice)]
    found += [*_file_permissions(database), *_beside(database, engine.database.folder), *_log(database)]
    from supervisor.ops.doctor import leftovers  # `run` only needs the file system

    found += leftovers.copies(database)
    found += _held(engine)  # before this process opens the database: later, this check would drop its locks
    if not any(finding.level == "fault" for finding in found):
        found += leftovers.inside(engine, settings)
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


def pooler(settings: Settings) -> list[str]:
    """What is to be done about a pooler before the database; nothing if that cannot be asked now."""
    if not of_server(settings.database):
        return []
    from supervisor.ops.doctor import server

    engine = open_engine(settings.database, settings.listen_database)
    with suppress(StoreError), closing(engine.operations()) as operations:
        state = operations.statistics.server()
        if state is not None:
            found = server.pooling(engine, state, listening=settings.listen_database is not None)
            return [f"{one.fact}; {one.advice}" for one in found if one.advice]
    return []


def _held(engine: Engine) -> Iterator[Finding]:
    """Whether a process blocks all other writers. A normal transaction lasts milliseconds."""
    writers = engine.ownership.writers()
    first, until = writers.database_holder(), time.monotonic() + _LONG_HOLD
    while first is not None and time.monotonic() < until:
        time.sleep(0.05)
        if writers.database_holder() != first:
            return
    if first is None:
        return
    command = kernel.command_of(first.pid)
    who = f"pid {first.pid}{f': {command}' if command else ''}" if first.pid else "a process of another container"
    yield fault(
        "database",
        f"a process holds the write lock without committing, so no other process can write: {who}",
        "end that program or its transaction; if it is a worker, the supervisor ends it after its job",
    )


def file_system(folder: Path) -> Finding:
    """SQLite's write-ahead log with shared memory works only on local disks."""
    kind = kind_of(folder, Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"))
    if NETWORK.fullmatch(kind):
        return fault(
            "file system",
            f"{folder} is on {kind}, a network file system, where SQLite's locks and shared memory do not work",
            "keep the database on a local disk",
        )
    if kind in _VOLATILE:
        return warning("file system", f"{folder} is on {kind}: its files are lost at a restart", "use a disk")
    return good("file system", f"{folder} is on {kind or 'an unknown file system'}")


def kind_of(folder: Path, mounts: str) -> str:
    """The type of the file system that holds a folder, from the text of /proc/self/mounts."""
    best, kind = -1, ""
    place = os.path.realpath(folder)
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:
            continue
        point = _unescaped(fields[1])
        # The last of several mounts on one point hides the earlier ones.
        if (place == point or place.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def _unescaped(point: str) -> str:
    for escape, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(escape, char)
    return point


def _open_to_all(path: Path) -> bool:
    """Whether any user can write there, and replace what others have written."""
    mode = path.stat().st_mode
    return bool(mode & 0o002 and not mode & 0o1000)


def _folder_permissions(folder: Path) -> Iterator[Finding]:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield fault(
            "permissions",
            f"{folder}: this user cannot write in the folder, where SQLite keeps its log beside the database",
            f"give user {os.geteuid()} read, write and search permission on the folder",
        )
    elif _open_to_all(folder):
        yield warning("permissions", f"{folder}: any user can write there", f"chmod o-w {folder}")


def _file_permissions(database: Path) -> Iterator[Finding]:
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


def _beside(database: Path, shared: Path) -> Iterator[Finding]:
    """The log and its index must have the same permissions as the database."""
    mode = database.stat().st_mode & 0o777
    for path in (*(Path(f"{database}{suffix}") for suffix in _BESIDE), shared):
        if not path.exists():
            continue
        if not os.access(path, os.R_OK | os.W_OK):
            advice = f"give it the owner and mode of the database: chown --reference={database} {path}"
            yield fault("permissions", f"{path}: this user cannot read and write it", advice)
        elif path.stat().st_mode & 0o006 & ~mode:
            yield fault("permissions", f"{path}: its permissions are wider than the database's", f"chmod o= {path}")


def configuration(settings: Settings) -> Iterator[Finding]:
    """Who can write the configuration or handlers controls what runs; who can read them may learn secrets."""
    code = (folder for pool in settings.pools.values() for folder in pool.path if folder.exists())
    for path in dict.fromkeys((settings.path, settings.folder, *code)):
        if _open_to_all(path):
            advice = f"chmod o-w {path}: a user who can write there controls what runs"
            yield fault("permissions", f"{path}: any user can write to it", advice)
    names = sorted({name for pool in settings.pools.values() for name in (*pool.env, *pool.options)})
    secret = [name for name in names if _SECRET.search(name)]
    if secret and settings.path.stat().st_mode & 0o004:
        yield warning(
            "permissions",
            f"{settings.path}: every user of this machine can read it, including {', '.join(secret)}",
            f"chmod o= {settings.path}, or keep secrets in the unit's EnvironmentFile",
        )


def runtime_folder() -> Iterator[Finding]:
    """The folder of scoreboards, if the environment names one: see `app.runtime_folder`."""
    for variable in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        value = os.environ.get(variable, "").partition(":")[0]
        if not value:
            continue
        folder = Path(value)
        if not os.access(folder, os.W_OK | os.X_OK):
            fact = f"{folder} (${variable}) is not writable, so scoreboards are stored beside the database"
            yield note("permissions", fact, "no action needed if this is intended")
        elif _open_to_all(folder):
            yield fault("permissions", f"{folder} (${variable}): any user can write there", f"chmod o-w {folder}")
        return


def _log(database: Path) -> Iterator[Finding]:
    try:
        size = Path(f"{database}-wal").stat().st_size
    except OSError:
        return
    if size > _LONG_LOG:
        yield warning(
            "database",
            f"its log (-wal) has grown to {human_size(size)}: a program has kept a read transaction open for minutes, "
            "or no supervisor is running",
            "end that transaction; a running supervisor then truncates the log",
        )


def _room(folder: Path, database: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    size = database.stat().st_size if database.exists() else 0
    if free < _ROOM:
        return warning("disk", f"{human_size(free)} free", "free some space: on a full disk no job can be enqueued")
    if free < size:
        advice = "free some space, or put copies on another disk"
        return warning("disk", f"{human_size(free)} free, too little for a copy of {human_size(size)}", advice)
    return good("disk", f"{human_size(free)} free")
