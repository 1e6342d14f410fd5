"""What the maintainer and operators work with on a server."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.duty import Duty
from supervisor.domain.job import Status
from supervisor.domain.text import text_of
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.backlog import PostgresBacklog
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.ownership import PostgresClaimLocks, PostgresRegistry
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.statistics import KeeperView, ServerView, Statistics, TableView
from supervisor.store.sql.stores import DatabaseCheck, EventLog, MaintenanceStore, Operations


def operations(connection: Connection) -> Operations:
    return Operations(connection, PostgresRegistry(connection), PostgresStatistics(connection))


_PATIENCE = 0.5  # seconds that it waits for a row: as long, nobody is woken


class PostgresMaintenance(MaintenanceStore):
    _connection: Connection

    def __init__(self, address: Address) -> None:
        connection = Connection(address, announce=True, patience=_PATIENCE)
        registry, locks = PostgresRegistry(connection, patient=True), PostgresClaimLocks(connection)
        super().__init__(connection, registry, locks, PostgresBacklog(connection))

    def duties(self, log: EventLog) -> Sequence[Duty]:
        return (DatabaseCheck("server", self._connection.check_writable),)


_COUNTED = 2_000_000  # rows that are read to count them


class PostgresStatistics(Statistics):
    """With those of the server; of a large table counts are estimates."""

    _connection: Connection

    def now(self) -> float:
        [(now,)] = self._connection.rows(QUERIES.clock)
        return float(now)

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        rows = self._connection.rows(QUERIES.count_closed, {"most": _COUNTED})
        return [(type_, Status(status), count) for type_, status, count in rows]

    def server(self) -> ServerView | None:
        """Raises StoreError."""
        [(time, standby, used, most, queue, sees_all)] = self._connection.rows(QUERIES.server_state)
        tables = [TableView(text_of(name), *rest) for name, *rest in self._connection.rows(QUERIES.table_rows)]
        found = self._connection.rows(QUERIES.keepers)  # of each kind the strongest
        keepers = [KeeperView(kind, text_of(who), *age) for kind, who, *age in found]
        powerless = [text_of(name) for (name,) in self._connection.rows(QUERIES.powerless)]
        return ServerView(
            time, standby, used, most, queue, sees_all, tables, keepers, self._connection.pooled, powerless
        )
