"""What operators work with, on a connection to a server."""

from __future__ import annotations

from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.ownership import Leases
from supervisor.store.sql.operations import SqlOperations
from supervisor.store.sql.registry import SqlRegistry


def operations(connection: Connection) -> SqlOperations:
    return SqlOperations(connection, SqlRegistry(connection, Leases(connection)), lambda: 0)
