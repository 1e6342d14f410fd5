"""Files of ours: replaced as a whole, trusted or not, who holds a lock on them, and when they change."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import struct
from pathlib import Path


def replace(path: Path, text: str, mode: int = 0o600) -> None:
    """Raises OSError; then the file is as it was. `mode` is that of the new file, less the umask."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(draft, flags, mode), "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


_ANYBODY = 0o002


def owner_of(path: Path) -> set[int]:
    """The owner of a file, if it exists."""
    try:
        return {path.stat().st_uid}
    except OSError:
        return set()


def folder_problem(folder: Path, owners: set[int]) -> str:
    """Why a folder must not be used, in a sentence; empty if it may, or does not exist.

    It must be a real folder and belong to this user, to root or to one of `owners`. If only some users may write to its
    parent, as in a folder shared by a group, its creator is one of them.
    """
    try:
        found = folder.lstat()
        beside = folder.parent.stat().st_mode
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{folder}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder}: {_kind(found.st_mode)} is in the place of our folder; remove it"
    return _foreign(folder, found.st_uid, beside, owners)


def file_problem(path: Path, descriptor: int, owners: set[int]) -> str:
    """The same for an open file: a regular one, without other names, by which it would also be someone else's."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        return f"{path}: {_kind(found.st_mode)} is in the place of our file; remove it"
    if found.st_nlink > 1:
        return f"{path}: it has another hard link, so it may be someone else's file; remove it"
    return _foreign(path, found.st_uid, path.parent.stat().st_mode, owners)


def _foreign(path: Path, owner: int, beside: int, owners: set[int]) -> str:
    if owner in (os.geteuid(), 0) or owner in owners or not beside & _ANYBODY:
        return ""
    return f"{path}: it belongs to user {owner}, in a folder where any user may write; remove it"


def _kind(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFREG: "a file"}
    return kinds.get(stat.S_IFMT(mode), "a special file")


_FLOCK = "hhqqi"  # the kernel's struct flock: type, whence, start, length, pid


def holder_of(descriptor: int, kind: int, start: int = 0, length: int = 0, *, own: bool = False) -> int | None:
    """The pid of another process, or also of this one, that blocks such a lock; 0 if it is in another container; None
    if there is none.

    Raises OSError if the file system has no record locks.
    """
    asked = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    command = fcntl.F_OFD_GETLK if own else fcntl.F_GETLK
    found, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, command, asked))
    return None if found == fcntl.F_UNLCK else max(0, pid)


_IN_MODIFY = 0x2
_IN_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("iIII")  # that of a file has no name
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK and IN_CLOEXEC have the same values
_MOST = 65536  # bytes of events to read at once

_libc = ctypes.CDLL(None, use_errno=True)


class FileWatch:
    """Watches for writes to the files that have these names, after `resume`. Raises OSError if that is not possible."""

    def __init__(self, *paths: Path) -> None:
        self._paths = [os.fsencode(path) for path in paths]
        self._watches: set[int] = set()
        if not hasattr(_libc, "inotify_init1"):
            raise OSError(errno.ENOSYS, "only Linux has inotify")
        self._descriptor = int(_libc.inotify_init1(_FLAGS))
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")

    def fileno(self) -> int:
        return self._descriptor

    def pause(self) -> None:
        """Stop watching: the kernel's events cost the writer 8 % of its time, whether they are read or not."""
        for watch in self._watches:
            _libc.inotify_rm_watch(self._descriptor, watch)
        self._watches = set()

    def resume(self) -> bool:
        """Watch the files that have the names now; whether one of them was not watched. Raises OSError."""
        before, found = self._watches, set()
        for path in self._paths:
            watch = int(_libc.inotify_add_watch(self._descriptor, path, ctypes.c_uint32(_IN_MODIFY)))
            if watch >= 0:
                found.add(watch)
            elif (code := ctypes.get_errno()) != errno.ENOENT:
                raise OSError(code, os.strerror(code))
        self._watches = before - found
        self.pause()  # what has lost its name
        self._watches = found
        return not found <= before

    def seen(self) -> bool:
        """Drain the events; returns whether there was a write."""
        try:
            data = os.read(self._descriptor, _MOST)
        except BlockingIOError:
            return False
        return any(mask & (_IN_MODIFY | _IN_Q_OVERFLOW) for _, mask, _, _ in _EVENT.iter_unpack(data))

    def close(self) -> None:
        os.close(self._descriptor)
