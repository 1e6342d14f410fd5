"""Supervisors and workers: the registry's rows, and whether their owners are alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from supervisor.domain.job import shown
from supervisor.store.base import Lease, SupervisorRecord, WorkerRecord
from supervisor.store.sql.connection import Connection


class Owners(Protocol):
    """Knows which supervisors are alive."""

    def lives(self, owner: SupervisorRecord) -> bool | None:
        """Whether a supervisor is alive: True, False, or None if this machine cannot tell."""

    def declare_dead(self, owner: SupervisorRecord) -> None:
        """Its lease ends now if its process has certainly ended."""

    def remove_files(self, gone: str, registered: Iterable[str]) -> None:
        """Delete what a supervisor has left that was removed from the registry, and what unregistered ones have."""


class SqlRegistry:
    """Implements `store.base.Registry`. `registered` is the id of the supervisor that was registered here; or empty."""

    def __init__(self, connection: Connection, owners: Owners) -> None:
        self._connection = connection
        self._queries = connection.queries
        self._owners = owners
        self.registered = ""

    def supervisors(self) -> list[SupervisorRecord]:
        return [SupervisorRecord(*row) for row in self._connection.rows(self._queries.supervisors)]

    def register(self, supervisor: SupervisorRecord) -> None:
        self._connection.apply(self._queries.register_supervisor, supervisor._asdict())
        self.registered = supervisor.id

    def forget(self, supervisor: str) -> None:
        self._connection.apply(
            self._queries.forget_supervisor, {"id": supervisor, "own": supervisor == self.registered}
        )
        self._owners.remove_files(supervisor, (other.id for other in self.supervisors()))

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None:
        return self._owners.lives(supervisor)

    def declare_dead(self, supervisor: SupervisorRecord) -> None:
        self._owners.declare_dead(supervisor)

    def renew(self, supervisor: str, posted: str | None) -> float | None:
        return None

    def leases(self) -> Mapping[str, Lease]:
        return {}

    def workers_of(self, supervisor: str) -> list[WorkerRecord]:
        return [
            WorkerRecord(*row) for row in self._connection.rows(self._queries.workers_of, {"supervisor": supervisor})
        ]

    def worker(self, incarnation: str) -> WorkerRecord | None:
        row = self._connection.row(self._queries.worker, {"incarnation": incarnation})
        return None if row is None else WorkerRecord(*row)

    def worker_name(self, incarnation: str) -> str | None:
        row = self._connection.row(self._queries.worker, {"incarnation": incarnation})
        return None if row is None else shown(row[3])
