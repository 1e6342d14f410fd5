"""Changes of files, by inotify: in one folder, as a hint, or anywhere below one."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

_IN_MODIFY = 0x2
_IN_CLOSE_WRITE = 0x8
_IN_MOVED_FROM = 0x40
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_IN_DELETE = 0x200
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x1000000
_IN_DONT_FOLLOW = 0x2000000
_IN_ISDIR = 0x40000000
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK and IN_CLOEXEC have the same values
_IN_TREE = _IN_CLOSE_WRITE | _IN_MOVED_FROM | _IN_MOVED_TO | _IN_CREATE | _IN_DELETE | _IN_ONLYDIR | _IN_DONT_FOLLOW
_HEADER = struct.Struct("=iIII")  # watch, mask, cookie, length of the name
_MOST = 65536  # bytes of events to read at once
_NOT_WATCHED = {"__pycache__", "node_modules", "site-packages"}

_libc = ctypes.CDLL(None, use_errno=True)


class FolderWatch:
    """Watches a directory for files whose name starts with `prefix`. Raises OSError if that is not possible."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._directory = os.fsencode(directory)
        self._prefix = os.fsencode(prefix)
        self._watch: int | None = None
        self._descriptor = int(_libc.inotify_init1(_FLAGS))
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        try:
            self.resume()
        except OSError:
            os.close(self._descriptor)
            raise

    def fileno(self) -> int:
        return self._descriptor

    def pause(self) -> None:
        """Stop watching: the kernel's events cost the writer 8 % of its time, whether they are read or not."""
        if self._watch is not None:
            _libc.inotify_rm_watch(self._descriptor, self._watch)
            self._watch = None

    def resume(self) -> bool:
        """Watch again; False if it already did. Raises OSError if that is not possible."""
        if self._watch is not None:
            return False
        mask = ctypes.c_uint32(_IN_MODIFY | _IN_CREATE | _IN_MOVED_TO)
        watch = int(_libc.inotify_add_watch(self._descriptor, self._directory, mask))
        if watch < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._watch = watch
        return True

    def seen(self) -> bool:
        """Drain the events; returns whether one of them was about our files."""
        found = False
        while True:
            try:
                data = os.read(self._descriptor, _MOST)
            except BlockingIOError:
                return found
            # Event records contain the file's name; ignore other files of the directory.
            found = found or self._prefix in data
            if len(data) < _MOST // 2:  # a read returns all events that fit
                return found

    def close(self) -> None:
        os.close(self._descriptor)


class TreeWatch:
    """Watches the files below a folder for which `relevant` is true. Links, hidden folders, virtual environments and
    installed packages are left out. Raises OSError if the kernel's limits do not allow it.
    """

    def __init__(self, folder: Path, relevant: Callable[[Path], bool]) -> None:
        self._folder = folder
        self._relevant = relevant
        self._folders: dict[int, Path] = {}
        self._descriptor = int(_libc.inotify_init1(_FLAGS))
        if self._descriptor < 0:
            raise _problem(folder)
        try:
            for found in _folders(folder):
                self._add(found)
        except OSError:
            os.close(self._descriptor)
            raise

    def fileno(self) -> int:
        return self._descriptor

    def changed(self) -> set[Path]:
        """The files that have been written, made, renamed or removed since the last call."""
        found: set[Path] = set()
        for number, mask, name in self._events():
            if mask & _IN_Q_OVERFLOW:
                found |= self._made(self._folder)
                continue
            folder = self._folders.get(number)
            if mask & _IN_IGNORED:
                self._folders.pop(number, None)
            elif folder is not None and mask & _IN_ISDIR:
                if mask & (_IN_CREATE | _IN_MOVED_TO) and _is_watched(folder / name):
                    found |= self._made(folder / name)
            elif folder is not None and mask & ~_IN_CREATE & _IN_TREE and self._relevant(folder / name):
                found.add(folder / name)  # what is created is not written yet
        return found

    def _made(self, folder: Path) -> set[Path]:
        """Watch a new folder, and return the files that are there already."""
        found: set[Path] = set()
        for each in _folders(folder):
            try:
                self._add(each)
                found |= {path for path in each.iterdir() if path.is_file() and self._relevant(path)}
            except OSError:
                continue  # it is gone again, or the limit is reached: the files in it are not watched
        return found

    def _add(self, folder: Path) -> None:
        number = int(_libc.inotify_add_watch(self._descriptor, os.fsencode(folder), ctypes.c_uint32(_IN_TREE)))
        if number >= 0:
            self._folders[number] = folder
        elif ctypes.get_errno() not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
            raise _problem(folder)

    def _events(self) -> Iterator[tuple[int, int, str]]:
        while True:
            try:
                data = os.read(self._descriptor, _MOST)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, mask, _, length = _HEADER.unpack_from(data, at)
                at += _HEADER.size + length
                yield number, mask, os.fsdecode(data[at - length : at].rstrip(b"\0"))


def _folders(folder: Path) -> Iterator[Path]:
    """The folder and those below it that are watched."""
    yield folder
    try:
        inner = [Path(entry) for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    for path in inner:
        if _is_watched(path):
            yield from _folders(path)


def _is_watched(folder: Path) -> bool:
    return not (folder.name.startswith(".") or folder.name in _NOT_WATCHED or (folder / "pyvenv.cfg").exists())


def _problem(folder: Path) -> OSError:
    number = ctypes.get_errno()
    hints = {
        errno.ENOSPC: "too many folders to watch: raise fs.inotify.max_user_watches, or move data out of this folder",
        errno.EMFILE: "too many programs watch files: raise fs.inotify.max_user_instances",
    }
    return OSError(number, hints.get(number, os.strerror(number)), str(folder))
