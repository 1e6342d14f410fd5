"""Detects commits: the kernel reports writes to the database's files, SQLite reports what has been committed.

With synchronous=FULL the kernel's report comes before the commit is visible. So a hint opens a window in which the
version is checked repeatedly, at growing intervals.
"""

from __future__ import annotations

import contextlib
import socket
import time

from supervisor.store.base import ChangeFeed
from supervisor.store.sqlite.connection import Connection
from supervisor.system.files import FolderWatch

# Seconds after a hint. Measured with FULL: visible 1 to 2 ms after it, or later on a busy disk.
WINDOW = (0.0, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)

# Seconds after the first hint of a commit. Measured with NORMAL: visible after 0.06 ms, and not before the last hint.
SETTLING = 0.0001

_SAFETY = 1.0  # seconds between two checks although there are hints: for a file that was replaced
_POLLING = 0.02  # seconds between two checks where there are none
_OTHERS = 0.05  # the same for what others than workers change


class SqliteChanges(ChangeFeed):
    window = WINDOW

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        database = connection.files.database
        self._watch: FolderWatch | None = None
        try:
            self._watch = FolderWatch(database.parent, database.name)
            self.unhinted = _SAFETY
        except OSError as error:
            self.problem = f"{database.parent}: {error.strerror or error}"
            self.unhinted = _POLLING

    def fileno(self) -> int | None:
        return None if self._watch is None else self._watch.fileno()

    def drain(self) -> bool:
        time.sleep(SETTLING)  # rather than being woken by each write of the same commit
        return self._watch is not None and self._watch.seen()

    def version(self) -> int:
        return self._connection.version()

    def pause(self) -> None:
        if self._watch is not None:
            self._watch.pause()

    def resume(self) -> bool:
        try:
            return self._watch is not None and self._watch.resume()
        except OSError:
            return False  # tried again at the next check; until then polling finds everything

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._connection.close()


class SqliteSettled(ChangeFeed):
    """Where the workers tell what they have settled: the file is not watched.

    What others change is noticed a little later.
    """

    window = (0.0,)
    unhinted = _OTHERS

    def __init__(self, connection: Connection, notices: socket.socket) -> None:
        self._connection = connection
        self._notices = notices

    def fileno(self) -> int:
        return self._notices.fileno()

    def drain(self) -> bool:
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
