"""Detects commits: the kernel reports writes to the database's files, SQLite reports what has been committed.

A write comes before its commit is visible; until then, the writer holds SQLite's write lock. So once nobody holds that
after a hint, one look sees all that was announced.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from typing import TYPE_CHECKING

from supervisor.store.base import ChangeFeed
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.writelock import WRITE_BYTE
from supervisor.system.files import FileWatch, holder_of
from supervisor.system.kernel import file_of, open_descriptors

if TYPE_CHECKING:
    import socket

_SHORTEST, _LONGEST = 0.00005, 0.008  # seconds for which a writer is expected to hold the lock. With FULL it syncs
_STEP = 0.1  # share by which that is changed when it was too short, or was not: it becomes the median
_RAREST = 0.128  # seconds between two checks while somebody writes
_SAFETY = 1.0  # seconds between two checks although there are hints: for a file that was replaced
_POLLING = 0.02  # seconds between two checks where there are none
_OTHERS = 0.05  # the same for what others than workers change


class SqliteChanges(ChangeFeed):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        database = connection.files.database
        connection.version()  # it opens the other files
        # SQLite's own descriptor: to close another one of the same file would drop SQLite's locks.
        index = connection.files.identity("-shm")
        self._index: int | None = None
        with contextlib.suppress(OSError):  # not Linux
            self._index = next((one for one in open_descriptors() if index and file_of(one) == index), None)
        self._hold = _SHORTEST
        self._watched_until = 0.0  # monotonic; then the names may lead to other files
        self._watch: FileWatch | None = None
        self._usual = _POLLING
        try:
            self._watch = FileWatch(database, database.with_name(f"{database.name}-wal"))
            self._watch.resume()
            self._usual = _SAFETY
        except OSError as error:
            self.problem = f"{database.parent}: {error.strerror or error}"
        self.unhinted = self._usual

    def fileno(self) -> int | None:
        return None if self._watch is None else self._watch.fileno()

    def drain(self, pause: float = 0.0) -> bool:
        if pause > 0:
            time.sleep(pause)
        self.unhinted = self._usual
        expected = self._hold
        for number, share in enumerate((1.0, 0.5, 0.5, 1.0)):  # rather than being woken by each write of a commit
            if not self._is_writing():
                break
            time.sleep(share * expected)
            self._hold = min(max(_SHORTEST, expected * (1 + _STEP if number else 1 - _STEP)), _LONGEST)
        return self._watch is not None and self._watch.seen()

    def version(self) -> int:
        if self._is_writing():
            self.unhinted = min(2 * self.unhinted, _RAREST) if self.unhinted <= _RAREST else self._hold / 2
        else:
            self.unhinted = self._usual
        return self._connection.version()

    def _is_writing(self) -> bool:
        """Whether anybody has a write transaction; True if that is unknown."""
        try:
            return self._index is None or holder_of(self._index, fcntl.F_WRLCK, WRITE_BYTE, 1, own=True) is not None
        except OSError:
            return True

    def pause(self) -> None:
        if self._watch is not None:
            self._watched_until = 0.0
            self._watch.pause()

    def resume(self) -> bool:
        if self._watch is None or time.monotonic() < self._watched_until:
            return False
        self._watched_until = time.monotonic() + _SAFETY
        try:
            return self._watch.resume()
        except OSError:
            return False  # tried again then; until then polling finds everything

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._connection.close()


class SqliteSettled(ChangeFeed):
    """Where the workers tell what they have settled: the file is not watched.

    What others change is noticed a little later.
    """

    unhinted = _OTHERS

    def __init__(self, connection: Connection, notices: socket.socket) -> None:
        self._connection = connection
        self._notices = notices

    def fileno(self) -> int:
        return self._notices.fileno()

    def drain(self, pause: float = 0.0) -> bool:
        found = False
        with contextlib.suppress(OSError):
            while True:
                self._notices.recv(1)
                found = True
        return found

    def version(self) -> int:
        return self._connection.version()

    def close(self) -> None:
        self._connection.close()
