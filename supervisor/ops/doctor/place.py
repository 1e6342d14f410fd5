"""Where the database lies: its file system, the room there, and who may read and write what."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from supervisor.config.settings import Settings
from supervisor.domain.duration import human_size
from supervisor.engine import open_engine
from supervisor.ops.doctor.finding import Finding, fault, good, note, warning
from supervisor.store.base import Engine
from supervisor.system import kernel

# As /proc/self/mounts names them.
NETWORK = re.compile(
    r"9p|afs|afpfs|beegfs|ceph|cifs|fuse\.(ceph|glusterfs|rclone|s3fs|sshfs)|gfs2?|glusterfs|gpfs|lustre|"
    r"ncpfs|nfs[34]?|ocfs2|orangefs|pvfs2|smb3|smbfs|virtiofs"
)
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_ROOM = 256 << 20  # bytes below which a disk is nearly full
_LONG_LOG = 64 << 20  # bytes; the maintainer keeps it far below, unless a reader holds it up
_LONG_HOLD = 1.0  # seconds
_BESIDE = ("-wal", "-shm")
_SECRET = re.compile(r"(?i)token|secret|passw|credential|api_?key|private")


def examine(url: str, settings: Settings | None = None) -> list[Finding]:
    """Raises StoreError or OSError where not even the folder can be looked at."""
    engine = open_engine(url)
    database = engine.database.file
    if database is None:
        return []
    folder = database.parent
    if not folder.is_dir():
        return [fault("database", f"{folder}: there is no such folder", "make it, or correct the path")]
    found = [file_system(folder), *_folder_permissions(folder), _room(folder, database)]
    if not engine.database.exists():
        advice = "`supervisor enqueue` or `supervisor run` creates it"
        return [*found, note("database", f"{database} does not exist yet", advice)]
    found += [*_file_permissions(database), *_beside(database, engine.database.folder), *_log(database)]
    from supervisor.ops.doctor import leftovers  # `run` wants to know the file system alone

    found += leftovers.copies(database)
    found += _held(engine)  # before this process opens the database: asked later, its own locks would be lost
    if not any(finding.level == "fault" for finding in found):
        found += leftovers.inside(engine, settings)
    return found


def _held(engine: Engine) -> Iterator[Finding]:
    """Whether somebody keeps all others from writing. A transaction lasts milliseconds."""
    writers = engine.writers()
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
        f"somebody holds its write lock and commits nothing, so nobody else can write: {who}",
        "end that program, or its transaction; if it is a worker, the supervisor ends it when its job is over",
    )


def file_system(folder: Path) -> Finding:
    """SQLite's log in shared memory works on one machine's own disks only."""
    kind = kind_of(folder, Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace"))
    if NETWORK.fullmatch(kind):
        return fault(
            "file system",
            f"{folder} is on {kind}, a network file system, where SQLite's locks and shared memory fail",
            "keep the database on a local disk",
        )
    if kind in _VOLATILE:
        return warning("file system", f"{folder} is on {kind}: it is gone after a restart", "use a real disk")
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
        # The last of several mounts on one point hides those before it.
        if (place == point or place.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def _unescaped(point: str) -> str:
    for escape, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        point = point.replace(escape, char)
    return point


def _folder_permissions(folder: Path) -> Iterator[Finding]:
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield fault(
            "permissions",
            f"{folder}: this user may not write in the folder, where SQLite keeps its log beside the database",
            f"give user {os.geteuid()} read, write and search permission on the folder",
        )
    elif folder.stat().st_mode & 0o002 and not folder.stat().st_mode & 0o1000:
        yield warning("permissions", f"{folder}: anybody may write there", f"chmod o-w {folder}")


def _file_permissions(database: Path) -> Iterator[Finding]:
    if not database.is_file():
        yield fault("database", f"{database} is not a file", "correct the path")
        return
    mode = database.stat().st_mode & 0o777
    if not os.access(database, os.R_OK | os.W_OK):
        yield fault("permissions", f"{database}: this user may not read and write it", "change owner or mode")
    elif mode & 0o002:
        advice = f"chmod o-w {database}: whoever writes jobs decides what your handlers do"
        yield fault("permissions", f"{database}: anybody may write to it", advice)
    elif mode & 0o004:
        advice = f"chmod o-r {database} unless every user may see the payloads"
        yield note("permissions", f"{database}: every user of this machine may read it", advice)
    else:
        yield good("permissions", f"{database} (mode {mode:o}) can be read and written")


def _beside(database: Path, shared: Path) -> Iterator[Finding]:
    """The log and its index must be as open as the database itself: no more, and no less."""
    mode = database.stat().st_mode & 0o777
    for path in (*(Path(f"{database}{suffix}") for suffix in _BESIDE), shared):
        if not path.exists():
            continue
        if not os.access(path, os.R_OK | os.W_OK):
            advice = f"give it the owner and mode of the database: chown --reference={database} {path}"
            yield fault("permissions", f"{path}: this user may not read and write it", advice)
        elif path.stat().st_mode & 0o006 & ~mode:
            yield fault("permissions", f"{path}: more open than the database", f"chmod o= {path}")


def configuration(settings: Settings) -> Iterator[Finding]:
    """Whoever may write the configuration or the handlers decides what runs; whoever reads it may learn secrets."""
    for path in (settings.path, settings.folder):
        mode = path.stat().st_mode
        if mode & 0o002 and not mode & 0o1000:
            advice = f"chmod o-w {path}: whoever may write there decides what runs"
            yield fault("permissions", f"{path}: anybody may write to it", advice)
    names = sorted({name for pool in settings.pools.values() for name in (*pool.env, *pool.options)})
    secret = [name for name in names if _SECRET.search(name)]
    if secret and settings.path.stat().st_mode & 0o004:
        yield warning(
            "permissions",
            f"{settings.path}: every user of this machine may read it, and so {', '.join(secret)}",
            f"chmod o= {settings.path}, or keep secrets in the unit's EnvironmentFile",
        )


def runtime_folder() -> Iterator[Finding]:
    """Where scoreboards go, if the environment names a place: see `app.runtime_folder`."""
    for variable in ("RUNTIME_DIRECTORY", "XDG_RUNTIME_DIR"):
        value = os.environ.get(variable, "").partition(":")[0]
        if not value:
            continue
        folder = Path(value)
        if not os.access(folder, os.W_OK | os.X_OK):
            fact = f"{folder} (${variable}) cannot be written, so scoreboards lie beside the database"
            yield note("permissions", fact, "nothing, if that is meant")
        elif folder.stat().st_mode & 0o002 and not folder.stat().st_mode & 0o1000:
            yield fault("permissions", f"{folder} (${variable}): anybody may write there", f"chmod o-w {folder}")
        return


def _log(database: Path) -> Iterator[Finding]:
    try:
        size = Path(f"{database}-wal").stat().st_size
    except OSError:
        return
    if size > _LONG_LOG:
        yield warning(
            "database",
            f"its log (-wal) has grown to {human_size(size)}: a program reads in one transaction for minutes, or no "
            "supervisor runs",
            "end that transaction; a running supervisor then shortens the log",
        )


def _room(folder: Path, database: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    size = database.stat().st_size if database.exists() else 0
    if free < _ROOM:
        return warning("disk", f"{human_size(free)} free", "make room: without it no job can be enqueued")
    if free < size:
        advice = "make room, or put copies on another disk"
        return warning("disk", f"{human_size(free)} free, too little for a copy of {human_size(size)}", advice)
    return good("disk", f"{human_size(free)} free")
