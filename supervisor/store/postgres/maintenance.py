"""What the maintainer and operators work with on a server, and the duty that checks whether it can be reached."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.job import Status
from supervisor.domain.text import text_of
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.backlog import PostgresBacklog
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.ownership import PostgresClaimLocks, PostgresRegistry
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.statistics import KeeperView, ServerState, Statistics, TableView
from supervisor.store.sql.stores import EventLog, MaintenanceStore, Operations


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
        return (ServerCheck(self._connection),)

    def close(self) -> None:
        self._connection.close()


class ServerCheck(Duty):
    """Checks that the server can be reached and written: for a supervisor that has nothing to write."""

    name = "server"
    every = 1.0  # seconds
    needs = Needs.NOTHING
    quiet = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, now: float) -> Result:
        """Raises StoreUnavailable if it cannot."""
        self._connection.check_writable()
        return Result()


def tables_of(connection: Connection) -> list[TableView]:
    return [TableView(text_of(name), *rows) for name, *rows in connection.rows(QUERIES.table_rows)]


def keepers_of(connection: Connection) -> list[KeeperView]:
    """What keeps dead rows from being removed: of each kind the strongest."""
    return [KeeperView(kind, text_of(who), *age) for kind, who, *age in connection.rows(QUERIES.keepers)]


_COUNTED = 2_000_000  # rows that are read to count them


class PostgresStatistics(Statistics):
    """With those of the server; of a large table counts are estimates."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, lambda: 0)

    def now(self) -> float:
        [(now,)] = self._connection.rows(QUERIES.clock)
        return float(now)

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        """Estimates where the table is large."""
        rows = self._connection.rows(QUERIES.count_closed, {"most": _COUNTED})
        return [(type_, Status(status), count) for type_, status, count in rows]

    def server(self) -> ServerState | None:
        """Raises StoreError."""
        [row] = self._connection.rows(QUERIES.server_state)
        rows, keepers = tables_of(self._connection), keepers_of(self._connection)
        powerless = tuple(text_of(name) for (name,) in self._connection.rows(QUERIES.powerless))
        return ServerState._make((*row, tuple(rows), tuple(keepers), self._connection.pooled, powerless))
