"""A stretch of a file as memory, of one process alone, that others can read when that process is dead."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def mapped(path: Path, at: int, size: int) -> mmap.mmap | None:
    """`size` bytes from `at`, which lies on a page's boundary; the file is made. None where there is no room for it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Now: the first write to a page that is not there kills the process on a full disk.
            os.posix_fallocate(descriptor, at, size)
            return mmap.mmap(descriptor, size, offset=at)
        finally:
            os.close(descriptor)
    except OSError:
        return None
