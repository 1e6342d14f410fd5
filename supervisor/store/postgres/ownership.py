"""Which supervisors are alive: on this machine their record locks tell, as with SQLite; of those elsewhere, a lease."""

from __future__ import annotations

import math
from collections.abc import Iterable

from supervisor.store.base import DatabaseHolder, Holder, SupervisorRecord
from supervisor.store.owner_files import FileOwnership
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.system.claim_gate import boot_time

_INTERRUPTION = 5.0  # seconds: no lease ends during a shorter one


class NoWriters:
    """Implements `store.base.Writers`: writers of a server do not wait for one lock."""

    def holder(self) -> Holder | None:
        return None

    def database_holder(self) -> DatabaseHolder | None:
        return None


class PostgresOwnership(FileOwnership):
    """Supervisors need leases: see `Leases`."""

    lease_time = 15.0  # seconds; the statements say the same


def ownership(address: Address) -> PostgresOwnership:
    return PostgresOwnership(address, NoWriters)


class Leases:
    """Implements `store.sql.registry.Owners`. What this machine cannot tell, the lease in the supervisor's row does.

    Only the same boot is the same machine: cloned machines share what identifies their installation.

    Whoever judges again and again is `patient`: if it could not ask for a while, others could perhaps not renew their
    leases either, which then count as if they had been renewed when the server was back. So they do at its first
    question: it may have been started while there was no server.
    """

    def __init__(self, connection: Connection, *, patient: bool = False) -> None:
        self._connection = connection
        self._here = ownership(connection.address)
        self._patient = patient
        self._asked = self._patient_until = -math.inf

    def lives(self, owner: SupervisorRecord) -> bool | None:
        verdict = self._seen_here(owner)
        if verdict is not None:
            return verdict
        # Neither its lock file nor its process is to be seen from another machine.
        row = self._connection.row(QUERIES.lease_holds, {"id": owner.id})
        now = boot_time()
        if self._patient and now - self._asked > _INTERRUPTION:
            self._patient_until = now + self._here.lease_time
        self._asked = now
        return None if row is None else bool(row[0]) or now < self._patient_until

    def declare_dead(self, owner: SupervisorRecord) -> None:
        if self._seen_here(owner) is False:
            self._connection.apply(QUERIES.end_lease, {"id": owner.id})

    def _seen_here(self, owner: SupervisorRecord) -> bool | None:
        here = owner.boot_id and owner.boot_id == self._here.boot_id
        return self._here.lives(owner) if here else None

    def remove_files(self, gone: str, registered: Iterable[str]) -> None:
        self._here.remove_files(gone, registered)
