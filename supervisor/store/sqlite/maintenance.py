"""What the maintainer works with, on one connection."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.duty import Duty
from supervisor.store.base import EventLog
from supervisor.store.sql.backlog import SqlBacklog
from supervisor.store.sql.claim_locks import SqlClaimLocks
from supervisor.store.sql.controls import SqlControls
from supervisor.store.sql.finished_jobs import SqlFinishedJobs
from supervisor.store.sql.history import SqlHistory
from supervisor.store.sql.schedules import SqlSchedules
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.duties import Checkpointer, FileCheck, ForeignWriterMonitor, checkpoint
from supervisor.store.sqlite.operations import registry
from supervisor.store.sqlite.place import Place


class SqliteMaintenance:
    """Implements `store.base.MaintenanceStore`."""

    def __init__(self, place: Place) -> None:
        self._connection = connection = Connection(place, synchronous="NORMAL")
        self.registry = registry(connection)
        self.locks = SqlClaimLocks(connection)
        self.backlog = SqlBacklog(connection, connection.unreadable)
        self.controls = SqlControls(connection)
        self.history = SqlHistory(connection)
        self.finished = SqlFinishedJobs(connection)
        self.schedules = SqlSchedules(lambda: Connection(place, synchronous="FULL"))

    def duties(self, log: EventLog, *, vacuum: bool = True) -> Sequence[Duty]:
        connection = self._connection
        return FileCheck(connection), ForeignWriterMonitor(connection), Checkpointer(connection, log)

    def flush(self) -> None:
        checkpoint(self._connection)

    def close(self) -> None:
        try:
            self.schedules.close()
        finally:
            self._connection.close()
