"""Finds who holds SQLite's record locks, without taking them.

The kernel drops all record locks of a process on a file when it closes any descriptor of it, and SQLite's are such
locks. So `database_holder`, which opens the files, is only for a process that has no SQLite connection to them; the
other functions are for one that has, and ask through the descriptors that SQLite has open there.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from supervisor.store.ownership import DatabaseHolder
from supervisor.store.sqlite.place import Place
from supervisor.system import kernel
from supervisor.system.files import any_holder_of, holder_of

_WRITE_BYTE = 120  # of the -shm file: WAL_WRITE_LOCK
_PENDING_BYTE = 0x40000000  # of the database; RESERVED is the next one, and then come the shared ones
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


def nobody_writes(place: Place) -> bool:
    """Whether no process, and no connection of this one, holds a lock that keeps writers out. False if unknown."""
    log, database = _descriptor(Path(f"{place.database}-shm")), _descriptor(place.database)
    if database is None:
        return False
    try:
        if log is None:  # readers keep writers out, too
            return any_holder_of(database, fcntl.F_WRLCK, _PENDING_BYTE, 2 + _SHARED_SIZE) is None
        exclusive = any_holder_of(database, fcntl.F_RDLCK, _SHARED_FIRST, _SHARED_SIZE)
        return exclusive is None and any_holder_of(log, fcntl.F_WRLCK, _WRITE_BYTE, 1) is None
    except OSError:
        return False


def reader(place: Place) -> int | None:
    """A process, perhaps this one, that reads a database without a log; 0: its pid is unknown; None beside a writer."""
    database = _descriptor(place.database)
    try:
        if database is None or any_holder_of(database, fcntl.F_WRLCK, _PENDING_BYTE, 2) is not None:
            return None
        return any_holder_of(database, fcntl.F_WRLCK, _SHARED_FIRST, _SHARED_SIZE)
    except OSError:
        return None


def _descriptor(path: Path) -> int | None:
    """One that this process has open on the file."""
    try:
        wanted = path.stat()
        for number in kernel.open_descriptors():
            if os.path.samestat(os.fstat(number), wanted):
                return number
    except OSError:  # another thread has closed it
        pass
    return None


def _commits(place: Place) -> bytes:
    try:
        with Path(f"{place.database}-shm").open("rb", buffering=0) as index:
            return index.read(_INDEX_HEADER)
    except OSError:
        return b""
