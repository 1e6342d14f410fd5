"""Numbers about the whole table and its server."""

from __future__ import annotations

from supervisor.store.base import ServerState
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.statistics import SqlStatistics


class PostgresStatistics(SqlStatistics):
    """Implements `store.base.Statistics`."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, lambda: 0)

    def server(self) -> ServerState | None:
        row = self._connection.row(QUERIES.server_state)
        return None if row is None else ServerState(*row)._replace(pooled=self._connection.pooled)
