"""Where the database lies: its file system, its permissions, its schema, and what dead programs left there."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from supervisor.doctor.finding import Finding, fault, good, note, warning
from supervisor.domain.duration import human_size
from supervisor.domain.errors import StoreError
from supervisor.engine import open_engine
from supervisor.store.base import Engine, Operations

# As /proc/self/mounts names them.
NETWORK = re.compile(
    r"9p|afs|afpfs|beegfs|ceph|cifs|fuse\.(ceph|glusterfs|rclone|s3fs|sshfs)|gfs2?|glusterfs|gpfs|lustre|"
    r"ncpfs|nfs[34]?|ocfs2|orangefs|pvfs2|smb3|smbfs|virtiofs"
)
_VOLATILE = frozenset({"tmpfs", "ramfs"})
_ROOM = 256 << 20  # bytes below which a disk is nearly full


def examine(url: str) -> list[Finding]:
    """Raises StoreError or OSError where not even the folder can be looked at."""
    engine = open_engine(url)
    folder = engine.watched
    if folder is None:
        return []
    if not folder.is_dir():
        return [fault("database", f"{folder}: there is no such folder", "make it, or correct the path")]
    found = [file_system(folder), *_folder_permissions(folder), _room(folder)]
    database = folder / engine.watch_prefix
    if not engine.exists():
        advice = "`supervisor enqueue` or `supervisor run` creates it"
        return [*found, note("database", f"{database} does not exist yet", advice)]
    found += _file_permissions(database)
    if not any(finding.level == "fault" for finding in found):
        found += _inside(engine)
    return found


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
        yield fault("database", f"{database} is no file", "correct the path")
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


def _room(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    if free < _ROOM:
        return warning("disk", f"{human_size(free)} free", "make room: without it no job can be enqueued")
    return good("disk", f"{human_size(free)} free")


def _inside(engine: Engine) -> Iterator[Finding]:
    try:
        operations = engine.operations()
    except StoreError as error:
        yield fault("database", str(error), "see the message; nothing was changed")
        return
    try:
        pending = sum(count for _, status, count in operations.counts() if status == "pending")
        yield good("database", f"the schema is current, {pending} jobs are pending")
        yield from _leftovers(engine, operations)
    finally:
        operations.close()


def _leftovers(engine: Engine, operations: Operations) -> Iterator[Finding]:
    supervisors = operations.supervisors()
    dead = [record for record in supervisors if operations.owner_lives(record) is False]
    if dead:
        pids = ", ".join(str(record.pid) for record in dead)
        yield note(
            "leftovers",
            f"supervisors that did not end properly: {pids}",
            "nothing to do: the next supervisor that runs takes their jobs back",
        )
    ours = {record.owner_lock for record in supervisors} | {record.scoreboard for record in supervisors}
    stray = [path for path in _stray_files(engine.folder) if str(path) not in ours]
    if stray:
        yield note(
            "leftovers",
            f"files of supervisors that are gone: {', '.join(path.name for path in stray[:5])}"
            + (f" and {len(stray) - 5} more" if len(stray) > 5 else ""),
            f"delete them from {engine.folder} while no supervisor is starting",
        )
    if not dead and not stray:
        yield good("leftovers", "none")


def _stray_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob("owner-*.lock"), *folder.glob("scoreboard-*")]) if folder.is_dir() else []
