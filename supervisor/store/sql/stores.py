"""Opened stores: the concerns on one connection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from supervisor.domain.duty import Duty
from supervisor.store.sql.backlog import Backlog
from supervisor.store.sql.batches import Batches
from supervisor.store.sql.claims import ClaimLocks
from supervisor.store.sql.connection import Connection
from supervisor.store.sql.gates import Gates
from supervisor.store.sql.job_actions import FinishedJobs, JobActions
from supervisor.store.sql.jobs import Jobs
from supervisor.store.sql.registry import Controls, Registry
from supervisor.store.sql.schedules import Schedules
from supervisor.store.sql.statistics import History, Statistics


class EventLog(Protocol):
    """Takes structured log events."""

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...


class _Store:
    """What maintainers and operators need alike."""

    def __init__(self, connection: Connection, registry: Registry, backlog: Backlog) -> None:
        self._connection = connection
        self.registry = registry
        self.backlog = backlog
        self.controls = Controls(connection)
        self.history = History(connection)
        self.gates = Gates(connection)
        self.schedules = Schedules(connection)

    def close(self) -> None:
        self._connection.close()


class MaintenanceStore(_Store):
    """What the maintainer works with."""

    def __init__(self, connection: Connection, registry: Registry, locks: ClaimLocks, backlog: Backlog) -> None:
        super().__init__(connection, registry, backlog)
        self.locks = locks
        self.finished = FinishedJobs(connection)

    def duties(self, log: EventLog) -> Sequence[Duty]:
        """The engine's own maintenance."""
        return ()

    def flush(self) -> None:
        """Called before `close` when the supervisor ends: complete writes that are still deferred."""


class Operations(_Store):
    """What operators work with: the command line and the admin process. Its connection commits durably."""

    def __init__(self, connection: Connection, registry: Registry, statistics: Statistics) -> None:
        super().__init__(connection, registry, Backlog(connection))
        self.jobs = Jobs(connection)
        self.actions = JobActions(connection)
        self.batches = Batches(connection)
        self.statistics = statistics

    def check(self, *, writable: bool = False) -> None:
        """Raises StoreGone if this is no longer the database that the URL names; with `writable` also StoreError if it
        cannot be written now, after waiting for as long as any writer would.
        """
        if not writable:
            self._connection.check()
            return
        with self._connection.write():
            return
