"""Finds who holds a POSIX record lock, without taking it."""

from __future__ import annotations

import fcntl
import os
import struct

_FLOCK = "hhqqi"  # the kernel's struct flock: type, whence, start, length, pid


def holder_of(descriptor: int, kind: int, start: int = 0, length: int = 0) -> int | None:
    """The pid of another process that blocks such a lock; 0 if it is in another container; None if there is none.

    Raises OSError if the file system has no record locks.
    """
    return _ask(fcntl.F_GETLK, descriptor, kind, start, length)


def any_holder_of(descriptor: int, kind: int, start: int, length: int) -> int | None:
    """The same; this process is not passed over."""
    return _ask(fcntl.F_OFD_GETLK, descriptor, kind, start, length)


def _ask(question: int, descriptor: int, kind: int, start: int, length: int) -> int | None:
    asked = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
    found, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(descriptor, question, asked))
    return None if found == fcntl.F_UNLCK else max(0, pid)
