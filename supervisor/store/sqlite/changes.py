"""Hears of commits: the kernel tells of writes to the database's files, and SQLite what has been committed.

With synchronous=FULL the kernel's word comes before the commit is visible. So a hint opens a window in which the
version is to be looked at again and again, at growing distances.
"""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.store.sqlite.connection import Connection
from supervisor.system.inotify import Watch

# Seconds after a hint. Measured with FULL: visible 1 to 2 ms after it.
WINDOW = (0.0, 0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128)


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
        """Readable when there are hints; None where there never are."""
        return None if self._watch is None else self._watch.fileno()

    def drain(self) -> bool:
        """Take in the hints; whether one of them was about this database."""
        return self._watch is not None and self._watch.seen()

    def version(self) -> int:
        return self._connection.version()

    def pause(self) -> None:
        """No hints for a while: they cost whoever writes."""
        if self._watch is not None:
            self._watch.pause()

    def resume(self) -> bool:
        """Hints again. True if there were none before: then what was committed meanwhile gave none."""
        try:
            return self._watch is not None and self._watch.resume()
        except OSError:
            return False  # tried again at the next look; until then the poll finds everything

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        self._connection.close()
