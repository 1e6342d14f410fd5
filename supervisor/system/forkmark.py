"""Memory that tells a process from its forks, and memory that forks do not get, even if C code makes the fork."""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import Protocol

_MADV_WIPEONFORK = 18  # since Linux 4.14


class Mark(Protocol):
    """`mark[0]` is 1 in the process that created the mark, 0 in every fork of it. Reading it needs no system call."""

    def __getitem__(self, index: int, /) -> int: ...


ALWAYS: Mark = b"\1"  # for processes that need not detect forks


def fork_mark() -> Mark:
    """A mark of this process. If the kernel cannot wipe memory at a fork, only Python's own forks are detected."""
    mark = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mark[0] = 1
    try:
        mark.madvise(_MADV_WIPEONFORK)
    except OSError:

        def wipe() -> None:
            mark[0] = 0

        os.register_at_fork(after_in_child=wipe)
    return mark


def keep_from_forks(memory: memoryview) -> None:
    """Exclude the mapping that contains `memory` from later forks of this process."""
    mapping = memory.obj
    if isinstance(mapping, mmap.mmap):
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_DONTFORK)
