"""A folder for the bodies of requests that are files: bounded, private, and emptied as their jobs go.

A request whose body is a picture or a recording becomes a job with the path of a file. This module keeps the files:

1. The body is written, piece by piece, to TOKEN.part, with mode 0600 in a folder with mode 0700. It counts as it
   arrives: when it is too large, or the folder or the disk is full, it is removed, and the request is refused. So it is
   when the client goes away.
2. When it is whole, it gets its name, TOKEN-SHA256, and TOKEN.label is written, which says for which job it is. Both
   and the folder are synchronized with the disk.
3. Only then is the job inserted. A commit survives a power failure, and so must what its payload names: there is
   never a job with half a file. If the insert is refused, the file is removed.
4. A process that is killed at any of these moments leaves a file without a job: `admin/uploads.py` compares labels
   with jobs and removes what no job needs.

The label holds the type and the unique key of the job, and not its id, which is not known before the insert: with the
id, a crash would leave files that nobody can judge. It also holds the URL of the database: files of another one, in a
folder that two share by mistake, are left alone.

What the folder holds is added up at most every ten seconds, and what this process writes is added to that. If several
hosts share it, together they may exceed the limit by what the others write in ten seconds.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import NamedTuple

_FRESH = 10.0  # seconds for which a sum holds
_BLOCK = 4096  # bytes: what a file takes at least
_LARGEST_LABEL = 8192  # bytes
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NAME = re.compile(r"([0-9a-f]{32})(?:\.part|\.label|(-[0-9a-f]{64}))")


class FileTooLarge(Exception):
    """The body is larger than one file may be."""


class SpoolFull(Exception):
    """There is no room for the body."""


class Label(NamedTuple):
    """Which job a file is for. `database` is its URL, without a password."""

    database: str
    type: str
    unique_key: str


class Spooled(NamedTuple):
    """What lies in the folder under one token: `body` is the name of its whole body, empty if there is none."""

    token: str
    body: str = ""


class Spool:
    """One folder. All methods may be called in several threads, and raise OSError if the folder cannot be used."""

    def __init__(self, folder: Path, max_file: int, max_total: int) -> None:
        self.folder = folder
        self.max_file = max_file
        self._max_total = max_total
        self._guard = threading.Lock()
        self._used = 0
        self._summed_at = -_FRESH

    def begin(self, size: int | None) -> Upload:
        """A file to be written; `size` is what it is said to have. Raises FileTooLarge and SpoolFull."""
        self.require_room_in_file(size or 0)
        with _full_disk():
            with suppress(FileExistsError):
                self.folder.mkdir(mode=0o700)
                _synchronize(self.folder.parent)
            if problem := folder_problem(self.folder):
                raise PermissionError(errno.EACCES, problem)
            self.take(0, _room(size or 1) + _BLOCK)  # with its label
            return Upload(self)

    def unchanged(self, seconds: float) -> list[Spooled]:
        """What was last written so long ago, by the clock that dates the files: that of a file server may differ from
        ours. Files with other names are left out.
        """
        files: dict[str, list[tuple[float, str]]] = {}  # by token: when it was written, and its name if it is a body
        with suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                found, parts = _stat(entry), _NAME.fullmatch(entry.name)
                if found and parts and stat.S_ISREG(found.st_mode):
                    files.setdefault(parts[1], []).append((found.st_mtime, entry.name if parts[2] else ""))
        if not files:
            return []
        os.utime(self.folder)
        until = self.folder.stat().st_mtime - seconds
        return [
            Spooled(token, max(name for _, name in its)) for token, its in sorted(files.items()) if max(its)[0] <= until
        ]

    def label(self, one: Spooled) -> Label | None:
        """None if there is none, or it says nothing."""
        try:
            with _opened(self.folder / f"{one.token}.label", os.O_RDONLY) as file:
                found = json.loads(file.read(_LARGEST_LABEL))
            return Label(*(str(found[name]) for name in Label._fields))
        except (FileNotFoundError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def remove(self, one: Spooled) -> None:
        """The label last: without it, nobody would know any more whose the body is."""
        for name in filter(None, (one.body, f"{one.token}.part", f"{one.token}.label")):
            (self.folder / name).unlink(missing_ok=True)
        with self._guard:
            self._summed_at = -_FRESH

    def require_room_in_file(self, size: int) -> None:
        if size > self.max_file:
            raise FileTooLarge(f"the body is too large; the limit is {self.max_file} bytes, max_file in [spool]")

    def take(self, size: int, more: int = 0) -> None:
        """Count the room of what is about to be written, in bytes; less than 0 gives it back. Raises SpoolFull if it
        and `more` do not fit.
        """
        with self._guard:
            if size + more > 0 and time.monotonic() - self._summed_at > _FRESH:
                with os.scandir(self.folder) as entries:
                    self._used = sum(_room(found.st_size) for entry in entries if (found := _stat(entry)))
                self._summed_at = time.monotonic()
            if size + more > 0 and self._used + size + more > self._max_total:
                raise SpoolFull(
                    f"the spool is full: its files have {self._used} of the {self._max_total} bytes that are allowed; "
                    "they are removed with their jobs"
                )
            self._used = max(0, self._used + size)


class Upload:
    """A file that is being written. After an error, and after `discard`, nothing of it is left.

    It may be discarded while another thread writes.
    """

    def __init__(self, spool: Spool) -> None:
        self.token = secrets.token_hex(16)
        self._spool = spool
        self._guard = threading.Lock()
        self._path = spool.folder / f"{self.token}.part"
        self._label = spool.folder / f"{self.token}.label"
        self._file = _opened(self._path, _NEW)
        self._digest = hashlib.sha256()
        self._size = 0
        self._taken = 0

    def write(self, data: bytes) -> None:
        """Raises FileTooLarge, SpoolFull, and OSError."""
        with self._whole_or_nothing():
            self._spool.require_room_in_file(self._size + len(data))
            self._take(_room(self._size + len(data)) - _room(self._size))
            self._size += len(data)
            self._digest.update(data)
            _write(self._file, data)

    def finish(self, label: Label) -> Path:
        """The path of the file, which survives a power failure from now on. Raises SpoolFull and OSError."""
        written = json.dumps(label._asdict()).encode()
        with self._whole_or_nothing():
            self._path = self._path.rename(self._path.with_name(f"{self.token}-{self._digest.hexdigest()}"))
            self._take(_room(len(written)))
            with _opened(self._label, _NEW) as file:
                _write(file, written)
                os.fsync(file)
            os.fsync(self._file)
            _synchronize(self._path.parent)  # last: most file systems have written it with the file
        self._file.close()
        return self._path

    def discard(self) -> None:
        """Remove it, finished or not."""
        with self._guard:
            self._discard()

    @contextmanager
    def _whole_or_nothing(self) -> Iterator[None]:
        with self._guard:
            if self._file.closed:
                raise OSError(errno.ECANCELED, "the upload has ended")
            try:
                with _full_disk():
                    yield
            except BaseException:
                self._discard()
                raise

    def _take(self, room: int) -> None:
        self._spool.take(room)
        self._taken += room

    def _discard(self) -> None:
        for path in (self._path, self._label):
            with suppress(OSError):
                path.unlink()
        self._file.close()
        with suppress(OSError):
            self._spool.take(-self._taken)
        self._taken = 0


def folder_problem(folder: Path) -> str:
    """Why the folder cannot be used, in one sentence; empty if it can, or can be made."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return "" if os.access(folder.parent, os.W_OK | os.X_OK) else f"{folder}: it cannot be made in {folder.parent}"
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder}: it is not a folder"
    if found.st_uid != os.geteuid():
        return f"{folder}: it belongs to user {found.st_uid}, not to user {os.geteuid()} of the service"
    if found.st_mode & 0o077:
        return f"{folder}: other users may use it; chmod 700 {folder}"
    return "" if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else f"{folder}: it cannot be written"


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def _opened(path: Path, flags: int) -> FileIO:
    """A private file without a buffer; no link is followed."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return FileIO(descriptor, "rb" if flags == os.O_RDONLY else "wb")


def _write(file: FileIO, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[file.write(rest) :]


def _synchronize(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _full_disk() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise SpoolFull(f"the disk of the spool has no room: {error.strerror}") from None


def _room(size: int) -> int:
    """What a file of this size takes on the disk."""
    return -(-size // _BLOCK) * _BLOCK


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None for what has gone meanwhile."""
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
