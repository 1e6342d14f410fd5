"""What operators work with, on a connection to a server."""

from __future__ import annotations

from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.registry import PostgresRegistry
from supervisor.store.postgres.statistics import PostgresStatistics
from supervisor.store.sql.operations import SqlOperations


def operations(connection: Connection) -> SqlOperations:
    return SqlOperations(connection, PostgresRegistry(connection), PostgresStatistics(connection))
