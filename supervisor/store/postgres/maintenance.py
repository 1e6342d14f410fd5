"""What the maintainer works with, on one connection."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.duty import Duty
from supervisor.store.base import EventLog
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.backlog import PostgresBacklog
from supervisor.store.postgres.claim_locks import PostgresClaimLocks
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.duties import ServerCheck
from supervisor.store.postgres.registry import PostgresRegistry
from supervisor.store.postgres.slow_queries import PostgresControls
from supervisor.store.postgres.vacuum import Vacuum
from supervisor.store.sql.finished_jobs import SqlFinishedJobs
from supervisor.store.sql.history import SqlHistory
from supervisor.store.sql.schedules import SqlSchedules

_PATIENCE = 0.5  # seconds that it waits for a row: as long, nobody is woken


class PostgresMaintenance:
    """Implements `store.base.MaintenanceStore`."""

    def __init__(self, address: Address, direct: Address) -> None:
        """`direct` leads to the server itself, if that is known."""
        self._direct = direct
        self._connection = connection = Connection(address, announce=True, patience=_PATIENCE)
        self.registry = PostgresRegistry(connection, patient=True)
        self.locks = PostgresClaimLocks(connection)
        self.backlog = PostgresBacklog(connection)
        self.controls = PostgresControls(connection)
        self.history = SqlHistory(connection)
        self.finished = SqlFinishedJobs(connection)
        self.schedules = SqlSchedules(lambda: connection)
        self._vacuum: Vacuum | None = None

    def duties(self, log: EventLog, *, vacuum: bool = True) -> Sequence[Duty]:
        if not vacuum:
            return (ServerCheck(self._connection),)
        self._vacuum = Vacuum(self._connection, Connection(self._direct, patience=_PATIENCE), log)
        return ServerCheck(self._connection), self._vacuum

    def flush(self) -> None:
        """Every commit has been written by the server."""

    def close(self) -> None:
        if self._vacuum is not None:
            self._vacuum.close()
        self.backlog.close()
        self._connection.close()
