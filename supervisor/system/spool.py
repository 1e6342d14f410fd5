"""A folder for the bodies of requests that are files: bounded, private, and emptied as their jobs go.

A request whose body is a picture or a recording becomes a job with the path of a file. This module keeps the files;
what becomes of them, in the order in which it happens:

1. The body is written, piece by piece, to TOKEN.part, with mode 0600 in a folder with mode 0700, where no link is
   followed. It counts as it arrives: when it becomes larger than one file may be, or the folder fuller than it may be,
   or the disk is full, it is removed, and the request is refused. So it is when the client goes away.
2. When it is whole, it gets its name, TOKEN-SHA256, and TOKEN.label is written, which says for which job it is. Both
   and the folder are synchronized with the disk.
3. Only then is the job inserted. A commit survives a power failure, and so must what its payload names: there is
   never a job with half a file. If the insert is refused, the file is removed.
4. A process that is killed at any of these moments leaves a file without a job. Twice a minute, the admin process
   compares the labels of the files with the jobs (`admin/uploads.py`): a file without a job goes when nothing
   of it has changed for ten minutes, by the clock that dates the files, so that no insert can still be on its way. So
   does the file of a job that was deleted, whoever has deleted it, and that of a job that succeeded some time ago. A
   job that failed, was cancelled or is quarantined keeps its file: it can be retried.

The label holds the type and the unique key of the job, which an index of the tables finds at once, and not its id,
which is not known before the insert; with the id, a crash would leave files that nobody can judge. It also holds the
URL of the database: files of another one, in a folder that two share by mistake, are left alone.

What the folder holds is added up at most every ten seconds, and what this process writes is added to that. If several
hosts share it, together they may exceed the limit by what the others write in ten seconds.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_FRESH = 10.0  # seconds for which a sum holds
_FULL_FOR = 1.0  # and one that leaves no room
_BLOCK = 4096  # bytes: what a file takes at least
_LARGEST_LABEL = 8192  # bytes
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class FileTooLarge(Exception):
    """The body is larger than one file may be."""


class SpoolFull(Exception):
    """There is no room for the body."""


class Found(NamedTuple):
    """A file of the folder. `changed` is Unix seconds."""

    name: str
    changed: float


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
        if size is not None and size > self.max_file:
            raise self._too_large()
        try:
            descriptor = self._opened()
        except OSError as error:
            raise _told(error) from None
        try:
            self._take(0, _room(size or 1) + _BLOCK)  # with its label
            return Upload(self, descriptor)
        except BaseException as error:
            os.close(descriptor)
            raise _told(error) from None

    def found(self) -> list[Found]:
        """What lies in the folder; empty if there is none."""
        try:
            with os.scandir(self.folder) as entries:
                return [found for entry in entries if (found := _found(entry)) is not None]
        except FileNotFoundError:
            return []

    def now(self) -> float:
        """Unix seconds by the clock that dates the files: that of a file server may differ from ours."""
        os.utime(self.folder)
        return self.folder.stat().st_mtime

    def label(self, token: str) -> bytes:
        """The label of a file; empty if there is none."""
        try:
            descriptor = os.open(self.folder / _label(token), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return b""
        with os.fdopen(descriptor, "rb") as file:
            return file.read(_LARGEST_LABEL)

    def remove(self, names: Iterable[str]) -> None:
        """The label last: without it, nobody would know any more whose the body is."""
        for name in sorted(names, key=lambda name: name.endswith(".label")):
            with suppress(FileNotFoundError):
                (self.folder / name).unlink()
        with self._guard:
            self._summed_at = -_FRESH

    def _opened(self) -> int:
        """A descriptor of the folder, which is made if necessary."""
        with suppress(FileExistsError):
            self.folder.mkdir(mode=0o700)
            _synchronize(self.folder.parent)
        problem = folder_problem(self.folder)
        if problem:
            raise PermissionError(errno.EACCES, problem)
        return os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _take(self, size: int, more: int = 0) -> None:
        """Count the room of what is about to be written, in bytes. Raises SpoolFull if it and `more` do not fit."""
        with self._guard:
            is_full = self._used + size + more > self._max_total
            if time.monotonic() - self._summed_at > (_FULL_FOR if is_full else _FRESH):
                self._used = self._sum()
                self._summed_at = time.monotonic()
            if self._used + size + more > self._max_total:
                raise SpoolFull(
                    f"the spool is full: its files have {self._used} of the {self._max_total} bytes that are allowed; "
                    "they are removed with their jobs"
                )
            self._used += size

    def _give_back(self, size: int) -> None:
        with self._guard:
            self._used = max(0, self._used - size)

    def _sum(self) -> int:
        with os.scandir(self.folder) as entries:
            return sum(_size(entry) for entry in entries)

    def _too_large(self) -> FileTooLarge:
        return FileTooLarge(f"the body is too large; the limit is {self.max_file} bytes, max_file in [spool]")


class Upload:
    """A file that is being written. After an error, and after `discard`, nothing of it is left.

    It may be discarded while another thread writes.
    """

    def __init__(self, spool: Spool, folder: int) -> None:
        self.token = secrets.token_hex(16)
        self._spool = spool
        self._guard = threading.Lock()
        self._folder = folder
        self._file = os.open(_part(self.token), _NEW, 0o600, dir_fd=folder)
        self._digest = hashlib.sha256()
        self._size = 0
        self._taken = 0
        self._names = [_part(self.token)]
        self._open = True

    def write(self, data: bytes) -> None:
        """Raises FileTooLarge, SpoolFull, and OSError."""
        with self._guard:
            self._require_open()
            try:
                if self._size + len(data) > self._spool.max_file:
                    raise self._spool._too_large()
                self._take(_room(self._size + len(data)) - _room(self._size))
                self._size += len(data)
                self._digest.update(data)
                _write(self._file, data)
            except BaseException as error:
                self._discard()
                raise _told(error) from None

    def finish(self, label: bytes) -> Path:
        """The path of the file, which survives a power failure from now on. Raises SpoolFull and OSError."""
        with self._guard:
            self._require_open()
            try:
                name = f"{self.token}-{self._digest.hexdigest()}"
                os.rename(self._names[0], name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
                self._names[0] = name
                self._label(label)
                os.fsync(self._file)
                os.fsync(self._folder)  # last: most file systems have written it with the file, and it costs nothing
                path = self._spool.folder / name
                self._require_there(path)
            except BaseException as error:
                self._discard()
                raise _told(error) from None
            os.close(self._file)
            os.close(self._folder)
            self._open = False
            return path

    def discard(self) -> None:
        """Remove it, finished or not."""
        with self._guard:
            if self._open:
                self._discard()
            else:
                self._spool.remove(self._names)
            self._names = []

    def _require_open(self) -> None:
        if not self._open:
            raise OSError(errno.ECANCELED, "the upload has ended")

    def _require_there(self, path: Path) -> None:
        """The descriptor of the folder may be that of another one than the path that the job will name."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if os.path.samestat(os.fstat(self._file), path.lstat()):
                return
        raise OSError(errno.ESTALE, "its folder was replaced while the file was written")

    def _take(self, room: int) -> None:
        self._spool._take(room)
        self._taken += room

    def _label(self, label: bytes) -> None:
        self._take(_room(len(label)))
        descriptor = os.open(_label(self.token), _NEW, 0o600, dir_fd=self._folder)
        self._names.append(_label(self.token))
        try:
            _write(descriptor, label)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _discard(self) -> None:
        for name in self._names:
            with suppress(OSError):
                os.unlink(name, dir_fd=self._folder)
        self._names = []
        os.close(self._file)
        os.close(self._folder)
        self._open = False
        self._spool._give_back(self._taken)


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


def _part(token: str) -> str:
    return f"{token}.part"


def _label(token: str) -> str:
    return f"{token}.label"


def _synchronize(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _told(error: BaseException) -> BaseException:
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        return SpoolFull(f"the disk of the spool has no room: {error.strerror}")
    return error


def _found(entry: os.DirEntry[str]) -> Found | None:
    """None for what has gone meanwhile, and for what is not a file."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return Found(entry.name, found.st_mtime) if stat.S_ISREG(found.st_mode) else None


def _room(size: int) -> int:
    """What a file of this size takes on the disk."""
    return -(-size // _BLOCK) * _BLOCK


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return _room(entry.stat(follow_symlinks=False).st_size)
    except FileNotFoundError:
        return 0
