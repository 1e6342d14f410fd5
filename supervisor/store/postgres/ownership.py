"""Which supervisors are alive: on this machine their record locks tell, as with SQLite; of those elsewhere, a lease."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.store.base import DatabaseHolder, Holder, SupervisorRecord
from supervisor.store.owner_files import FileOwnership
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES


class NoWriters:
    """Implements `store.base.Writers`: writers of a server do not wait for one lock."""

    def holder(self) -> Holder | None:
        return None

    def database_holder(self) -> DatabaseHolder | None:
        return None


def ownership(address: Address) -> FileOwnership:
    return FileOwnership(address, NoWriters)


class Leases:
    """Implements `store.sql.registry.Owners`. What this machine cannot tell, the lease in the supervisor's row does."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._here = ownership(connection.address)

    def lives(self, owner: SupervisorRecord) -> bool | None:
        verdict = self._here.lives(owner)
        if verdict or owner.machine_id == self._here.machine_id:
            return verdict
        # Neither its lock file nor its process is to be seen from another machine.
        row = self._connection.row(QUERIES.lease_holds, {"id": owner.id})
        return verdict if row is None else bool(row[0])

    def remove_files(self, gone: str, registered: Iterable[str]) -> None:
        self._here.remove_files(gone, registered)
