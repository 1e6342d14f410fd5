"""Changes of files in one directory, as a hint. Where the file system knows no inotify there are none."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_IN_MODIFY = 0x2
_IN_CREATE = 0x100
_IN_MOVED_TO = 0x80
_FLAGS = os.O_NONBLOCK | os.O_CLOEXEC  # IN_NONBLOCK and IN_CLOEXEC have the same values

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """Watches a directory for files whose name begins with `prefix`. Raises OSError where it cannot."""

    def __init__(self, directory: Path, prefix: str) -> None:
        self._prefix = os.fsencode(prefix)
        self._descriptor = int(_libc.inotify_init1(_FLAGS))
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        mask = ctypes.c_uint32(_IN_MODIFY | _IN_CREATE | _IN_MOVED_TO)
        if _libc.inotify_add_watch(self._descriptor, os.fsencode(directory), mask) < 0:
            errno = ctypes.get_errno()
            os.close(self._descriptor)
            raise OSError(errno, os.strerror(errno))

    def fileno(self) -> int:
        return self._descriptor

    def seen(self) -> bool:
        """Drain the events; whether one of them was about our files."""
        found = False
        while True:
            try:
                data = os.read(self._descriptor, 65536)
            except BlockingIOError:
                return found
            # Event records hold the file's name; other files of the directory are not our business.
            found = found or self._prefix in data

    def close(self) -> None:
        os.close(self._descriptor)
