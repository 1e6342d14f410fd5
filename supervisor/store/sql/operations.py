"""What operators work with, on one connection."""

from __future__ import annotations

from supervisor.store.sql.backlog import SqlBacklog
from supervisor.store.sql.connection import Opened
from supervisor.store.sql.controls import SqlControls
from supervisor.store.sql.history import SqlHistory
from supervisor.store.sql.job_actions import SqlJobActions
from supervisor.store.sql.jobs import SqlJobs
from supervisor.store.sql.registry import SqlRegistry
from supervisor.store.sql.schedules import SqlSchedules
from supervisor.store.sql.statistics import SqlStatistics


class SqlOperations:
    """Implements `store.base.Operations`. Its connection commits durably."""

    def __init__(self, connection: Opened, registry: SqlRegistry, statistics: SqlStatistics) -> None:
        self._connection = connection
        self.registry = registry
        self.jobs = SqlJobs(connection)
        self.actions = SqlJobActions(connection)
        self.backlog = SqlBacklog(connection)
        self.controls = SqlControls(connection)
        self.history = SqlHistory(connection)
        self.schedules = SqlSchedules(lambda: connection)
        self.statistics = statistics

    def check(self, *, writable: bool = False) -> None:
        if not writable:
            self._connection.check()
            return
        with self._connection.write():
            return

    def close(self) -> None:
        self._connection.close()
