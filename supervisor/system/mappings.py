"""Memory as the kernel maps it: parts of files that outlive their writer, and memory that a fork does not get."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from pathlib import Path
from typing import Any, Protocol, TypeVar, get_type_hints

_Structure = TypeVar("_Structure", bound=type[ctypes.Structure])
_WORDS: dict[object, Any] = {int: ctypes.c_int64, float: ctypes.c_double}


def fields_from_annotations(structure: _Structure) -> _Structure:
    """A class decorator: numbers are words of 8 bytes, and what is Annotated with a type of ctypes has that. Each word
    is stored whole.
    """
    hints = get_type_hints(structure, include_extras=True)
    structure._fields_ = [
        (name, _WORDS.get(hint) or hint.__metadata__[0]) for name, hint in hints.items() if name != "_fields_"
    ]
    return structure


def mapped(path: Path, at: int, size: int) -> memoryview | None:
    """`size` bytes from `at`, which is on a page boundary; creates the file. Forks of this process do not get them.
    None if there is no room.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            # Allocate now: the first write to a missing page kills the process on a full disk.
            os.posix_fallocate(descriptor, at, size)
            memory = memoryview(mmap.mmap(descriptor, size, offset=at))
        finally:
            os.close(descriptor)
    except OSError:
        return None
    keep_from_forks(memory)
    return memory


def words(memory: memoryview, count: int) -> memoryview:
    """The first words of it, each of which is stored whole. `struct.pack_into` clears them first, and another process
    may see that.
    """
    return memory[: 8 * count].cast("q")


def put_in_ring(ring: memoryview, at: int, data: bytes) -> None:
    """Write no more than the ring holds, at a position that counts all bytes that were ever written."""
    at %= len(ring)
    first, rest = data[: len(ring) - at], data[len(ring) - at :]
    ring[at : at + len(first)] = first
    ring[: len(rest)] = rest


def get_from_ring(ring: memoryview, at: int, size: int) -> bytes:
    at %= len(ring)
    first = bytes(ring[at : at + size])
    return first + bytes(ring[: size - len(first)])


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
