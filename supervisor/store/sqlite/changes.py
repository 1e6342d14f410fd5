"""Detects commits: the kernel reports writes to the database's files, SQLite reports what has been committed.

With synchronous=FULL the kernel's report comes before the commit is visible. So a hint opens a window in which the
version is checked repeatedly, at growing intervals.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from supervisor.store.sqlite.connection import Connection
from supervisor.system.inotify import Watch

# Seconds after a hint. Measured with FULL: visible 1 to 2 ms after it, or later on a busy disk.
WINDOW = (0.0, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)

# Seconds after the first hint of a commit. Measured with NORMAL: visible after 0.06 ms, and not before the last hint.
SETTLING = 0.0001


class SqliteChanges:
    """Implements `store.base.ChangeFeed`."""

    window: Sequence[float] = WINDOW

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.problem = ""
        database = connection.place.database
        self._watch: Watch | None = None
        try:
            self._watch = Watch(database.parent, database.name)
        except OSError as error:
            self.problem = f"{database.parent}: {error.strerror or error}"

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
