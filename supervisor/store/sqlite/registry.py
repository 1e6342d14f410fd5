"""Supervisors and workers: the registry's rows, and whether their owners are alive."""

from __future__ import annotations

from supervisor.domain.job import shown
from supervisor.store.base import SupervisorRecord, WorkerRecord
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.owner import SqliteOwnership


class SqliteRegistry:
    """Implements `store.base.Registry`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._ownership = SqliteOwnership(connection.place)

    def supervisors(self) -> list[SupervisorRecord]:
        return [SupervisorRecord(*row) for row in self._connection.rows(QUERIES.supervisors)]

    def register(self, supervisor: SupervisorRecord) -> None:
        self._connection.apply(QUERIES.register_supervisor, supervisor._asdict())

    def forget(self, supervisor: str) -> None:
        self._connection.apply(QUERIES.forget_supervisor, {"id": supervisor})
        self._ownership.remove_files(supervisor, (other.id for other in self.supervisors()))

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None:
        return self._ownership.lives(supervisor)

    def workers_of(self, supervisor: str) -> list[WorkerRecord]:
        return [WorkerRecord(*row) for row in self._connection.rows(QUERIES.workers_of, {"supervisor": supervisor})]

    def worker(self, incarnation: str) -> WorkerRecord | None:
        row = self._connection.row(QUERIES.worker, {"incarnation": incarnation})
        return None if row is None else WorkerRecord(*row)

    def worker_name(self, incarnation: str) -> str | None:
        row = self._connection.row(QUERIES.worker, {"incarnation": incarnation})
        return None if row is None else shown(row[3])


def supervised(connection: Connection) -> bool:
    """Whether any supervisor of this database is alive: then checkpoints are its maintainer's."""
    registry = SqliteRegistry(connection)
    return any(registry.owner_lives(record) for record in registry.supervisors())
