"""What the maintainer works with, on one connection."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.duty import Duty
from supervisor.store.base import EventLog
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.duties import LeaseRenewal, ServerCheck
from supervisor.store.postgres.ownership import Leases
from supervisor.store.sql.backlog import SqlBacklog
from supervisor.store.sql.claim_locks import SqlClaimLocks
from supervisor.store.sql.controls import SqlControls
from supervisor.store.sql.finished_jobs import SqlFinishedJobs
from supervisor.store.sql.history import SqlHistory
from supervisor.store.sql.registry import SqlRegistry
from supervisor.store.sql.schedules import SqlSchedules


class PostgresMaintenance:
    """Implements `store.base.MaintenanceStore`."""

    def __init__(self, address: Address) -> None:
        self._connection = connection = Connection(address, announce=True)
        self.registry = SqlRegistry(connection, Leases(connection))
        self.locks = SqlClaimLocks(connection)
        self.backlog = SqlBacklog(connection)
        self.controls = SqlControls(connection)
        self.history = SqlHistory(connection)
        self.finished = SqlFinishedJobs(connection)
        self.schedules = SqlSchedules(lambda: connection)

    def duties(self, log: EventLog) -> Sequence[Duty]:
        return ServerCheck(self._connection), LeaseRenewal(self._connection, self.registry)

    def flush(self) -> None:
        """Every commit has been written by the server."""

    def close(self) -> None:
        self._connection.close()
