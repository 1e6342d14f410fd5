"""What operators work with, on one connection."""

from __future__ import annotations

from supervisor.store.sqlite import registry
from supervisor.store.sqlite.backlog import SqliteBacklog
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.controls import SqliteControls
from supervisor.store.sqlite.history import SqliteHistory
from supervisor.store.sqlite.job_actions import SqliteJobActions
from supervisor.store.sqlite.jobs import SqliteJobs
from supervisor.store.sqlite.registry import SqliteRegistry
from supervisor.store.sqlite.schedules import SqliteSchedules
from supervisor.store.sqlite.statistics import SqliteStatistics


class SqliteOperations:
    """Implements `store.base.Operations`. Its connection commits with synchronous=FULL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.checkpoint_itself(not registry.supervised(connection))
        self.jobs = SqliteJobs(connection)
        self.actions = SqliteJobActions(connection)
        self.registry = SqliteRegistry(connection)
        self.backlog = SqliteBacklog(connection)
        self.controls = SqliteControls(connection)
        self.history = SqliteHistory(connection)
        self.schedules = SqliteSchedules(lambda: connection)
        self.statistics = SqliteStatistics(connection)

    def check(self, *, writable: bool = False) -> None:
        if not writable:
            self._connection.insist_on_file()
            return
        with self._connection.write():
            return

    def close(self) -> None:
        self._connection.close()
