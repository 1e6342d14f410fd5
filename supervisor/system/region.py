"""A part of a file as memory, written by one process, that others can read when that process is dead."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def mapped(path: Path, at: int, size: int) -> mmap.mmap | None:
    """`size` bytes from `at`, which is on a page boundary; creates the file. None if there is no room for it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Allocate now: the first write to a missing page kills the process on a full disk.
            os.posix_fallocate(descriptor, at, size)
            return mmap.mmap(descriptor, size, offset=at)
        finally:
            os.close(descriptor)
    except OSError:
        return None


def words(memory: memoryview, count: int) -> memoryview:
    """The first words of it, each of which is stored whole. `struct.pack_into` clears them first, and another process
    may see that.
    """
    return memory[: 8 * count].cast("q")
