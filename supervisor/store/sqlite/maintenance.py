"""What the maintainer works with, on one connection."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.duty import Duty
from supervisor.store.base import EventLog
from supervisor.store.sqlite.backlog import SqliteBacklog
from supervisor.store.sqlite.claim_locks import SqliteClaimLocks
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.controls import SqliteControls
from supervisor.store.sqlite.duties import Checkpointer, FileCheck, ForeignWriterMonitor, checkpoint
from supervisor.store.sqlite.finished_jobs import SqliteFinishedJobs
from supervisor.store.sqlite.history import SqliteHistory
from supervisor.store.sqlite.place import Place
from supervisor.store.sqlite.registry import SqliteRegistry
from supervisor.store.sqlite.schedules import SqliteSchedules


class SqliteMaintenance:
    """Implements `store.base.MaintenanceStore`."""

    def __init__(self, place: Place) -> None:
        self._connection = connection = Connection(place, synchronous="NORMAL")
        self.registry = SqliteRegistry(connection)
        self.locks = SqliteClaimLocks(connection)
        self.backlog = SqliteBacklog(connection, fail_unreadable=True)
        self.controls = SqliteControls(connection)
        self.history = SqliteHistory(connection)
        self.finished = SqliteFinishedJobs(connection)
        self.schedules = SqliteSchedules(lambda: Connection(place, synchronous="FULL"))

    def duties(self, log: EventLog) -> Sequence[Duty]:
        connection = self._connection
        return FileCheck(connection), ForeignWriterMonitor(connection), Checkpointer(connection, log)

    def flush(self) -> None:
        checkpoint(self._connection)

    def close(self) -> None:
        try:
            self.schedules.close()
        finally:
            self._connection.close()
