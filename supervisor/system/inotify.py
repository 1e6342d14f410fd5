"""Changes of files in a folder, as a hint, by inotify."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_IN_MODIFY = 0x2
_IN_MOVED_TO = 0x80
_IN_CREATE = 0x100
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK and IN_CLOEXEC have the same values
_MOST = 65536  # bytes of events to read at once

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
