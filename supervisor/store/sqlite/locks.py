"""Finds who holds SQLite's record locks, without taking them.

Only for a process that has no SQLite connection to the file: the kernel drops all record locks of a process on a
file when it closes any descriptor of it, and SQLite's are such locks.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from supervisor.store.ownership import DatabaseHolder
from supervisor.store.sqlite.place import Place
from supervisor.system.record_locks import holder_of

_WRITE_BYTE = 120  # of the -shm file: WAL_WRITE_LOCK
_SHARED_FIRST, _SHARED_SIZE = 0x40000002, 510  # of the database: held for writing in the exclusive locking mode
_INDEX_HEADER = 48  # bytes of the -shm file that every commit changes


def database_holder(place: Place) -> DatabaseHolder | None:
    """Who is in a write transaction, or has the file in exclusive mode."""
    for path, kind, start, length in (
        (f"{place.database}-shm", fcntl.F_WRLCK, _WRITE_BYTE, 1),
        (str(place.database), fcntl.F_RDLCK, _SHARED_FIRST, _SHARED_SIZE),
    ):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            pid = holder_of(descriptor, kind, start, length)
            if pid is not None:
                return DatabaseHolder(pid, _commits(place))
        except OSError:
            continue
        finally:
            os.close(descriptor)
    return None


def _commits(place: Place) -> bytes:
    try:
        with Path(f"{place.database}-shm").open("rb", buffering=0) as index:
            return index.read(_INDEX_HEADER)
    except OSError:
        return b""
