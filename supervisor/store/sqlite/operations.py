"""What operators work with, on an SQLite connection."""

from __future__ import annotations

from functools import partial

from supervisor.store.owner_files import FileOwnership
from supervisor.store.sql.operations import SqlOperations
from supervisor.store.sql.registry import SqlRegistry
from supervisor.store.sql.statistics import SqlStatistics
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.place import Place
from supervisor.store.sqlite.writelock import WriterWatch


def ownership(place: Place) -> FileOwnership:
    return FileOwnership(place, partial(WriterWatch, place))  # it is pickled with the engine


def registry(connection: Connection) -> SqlRegistry:
    return SqlRegistry(connection, ownership(connection.place))


def supervised(connection: Connection) -> bool:
    """Whether any supervisor of this database is alive: then checkpoints are its maintainer's."""
    known = registry(connection)
    return any(known.owner_lives(record) for record in known.supervisors())


def operations(connection: Connection) -> SqlOperations:
    """The connection should commit with synchronous=FULL."""
    connection.checkpoint_itself(not supervised(connection))
    return SqlOperations(connection, registry(connection), SqlStatistics(connection, connection.place.log_size))
