"""The registry of a server: its supervisors have leases, and post for other hosts what their scoreboards show."""

from __future__ import annotations

from collections.abc import Mapping

from supervisor.store.base import Lease
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.ownership import Leases
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.registry import SqlRegistry


class PostgresRegistry(SqlRegistry):
    """Implements `store.base.Registry`."""

    def __init__(self, connection: Connection, *, patient: bool = False) -> None:
        super().__init__(connection, Leases(connection, patient=patient))

    def renew(self, supervisor: str, posted: str | None) -> float | None:
        row = self._connection.row(QUERIES.renew_lease, {"id": supervisor, "posted": posted})
        return None if row is None else float(row[0])

    def leases(self) -> Mapping[str, Lease]:
        return {row[0]: Lease(*row[1:]) for row in self._connection.rows(QUERIES.leases)}
