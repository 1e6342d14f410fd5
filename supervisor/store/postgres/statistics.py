"""Numbers about the whole table and its server."""

from __future__ import annotations

from supervisor.domain.job import Status
from supervisor.store.base import ServerState
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.postgres.vacuum import keepers_of, tables_of
from supervisor.store.sql.statistics import SqlStatistics

_COUNTED = 2_000_000  # rows that are read to count them


class PostgresStatistics(SqlStatistics):
    """Implements `store.base.Statistics`."""

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
        powerless = tuple(name for (name,) in self._connection.rows(QUERIES.powerless))
        return ServerState._make((*row, tuple(rows), tuple(keepers), self._connection.pooled, powerless))
