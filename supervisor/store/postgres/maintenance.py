"""What the maintainer and operators work with on a server, and which supervisors are alive: of those on this machine
their record locks tell, as with SQLite; of those elsewhere, a lease.

The registry has the leases, and what a dead worker held is settled only while its supervisor has none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from supervisor.domain.errors import LeaseHeld
from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement, released
from supervisor.domain.text import text_of
from supervisor.store.ownership import Ownership, SupervisorRecord
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.backlog import PostgresBacklog
from supervisor.store.postgres.connection import Connection, session_of
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.claims import ClaimLocks
from supervisor.store.sql.registry import Lease, Registry
from supervisor.store.sql.statistics import KeeperView, ServerView, Statistics, TableView
from supervisor.store.sql.stores import MaintenanceStore, Operations
from supervisor.system.scoreboard import boot_time

_INTERRUPTION = 8.0  # seconds: no lease ends during a shorter one
_KNOWN = 4.0  # seconds for which it is remembered who there is
_JUST_NOW = 0.5  # seconds for which it is remembered whose lease has ended: one question for all hosts


class PostgresOwnership(Ownership):
    """Supervisors need leases: see `PostgresRegistry`."""

    lease_time = 15.0  # seconds; the statements say the same


class PostgresRegistry(Registry):
    """Supervisors have leases, and post for other hosts what their scoreboards show. What this machine cannot tell, the
    lease in the supervisor's row does. Only the same boot is the same machine: cloned machines share what identifies
    their installation.

    Whoever judges again and again is `patient`: if it could not ask for a while, others could perhaps not renew their
    leases either, which then count as if they had been renewed when the server was back. So they do at its first
    question: it may have been started while there was no server. Who there is, it asks every few seconds.
    """

    def __init__(self, connection: Connection, *, patient: bool = False) -> None:
        super().__init__(connection, PostgresOwnership(connection.address))
        self._patient = patient
        self._asked = self._patient_until = self._ended_at = -math.inf
        self._known: list[SupervisorRecord] = []
        self._ended: set[str] = set()

    def supervisors(self) -> list[SupervisorRecord]:
        known = self._known if self._patient and boot_time() - self._asked < _KNOWN else []
        if not known or any(self._seen_here(one) is False for one in known):
            self._known, now = super().supervisors(), boot_time()
            if self._patient and now - self._asked > _INTERRUPTION:
                self._patient_until = now + PostgresOwnership.lease_time
            self._asked = now
        return self._known

    def forget(self, supervisor: str, now: float) -> None:
        super().forget(supervisor, now)
        self._known = []

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None:
        verdict = self._seen_here(supervisor)
        if verdict is not None:
            return verdict
        # Neither its lock file nor its process is to be seen from another machine.
        if boot_time() - self._ended_at > _JUST_NOW:
            self._ended, self._ended_at = {id_ for (id_,) in self._connection.rows(QUERIES.ended_leases)}, boot_time()
        return supervisor.id not in self._ended or boot_time() < self._patient_until

    def declare_dead(self, supervisor: SupervisorRecord) -> None:
        if self._seen_here(supervisor) is False:
            self._connection.apply(QUERIES.end_lease, {"id": supervisor.id})

    def _seen_here(self, supervisor: SupervisorRecord) -> bool | None:
        here = supervisor.boot_id and supervisor.boot_id == self._ownership.boot_id
        return self._ownership.lives(supervisor) if here else None

    def renew(self, supervisor: str, posted: str | None) -> float | None:
        row = self._connection.row(QUERIES.renew_lease, {"id": supervisor, "posted": posted})
        return None if row is None else float(row[0])

    def leases(self) -> Mapping[str, Lease]:
        return {row[0]: Lease(*row[1:]) for row in self._connection.rows(QUERIES.leases)}


class PostgresClaimLocks(ClaimLocks):
    """What a dead worker held is settled only while its supervisor has no lease."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # How many jobs of dead workers were settled, until none of their claims is on its way.
        self._may_be_late: dict[str, int] = {}

    def held_by(self, owner: str) -> list[Claim]:
        """The sessions of the dead worker are ended first, since the server may yet carry out a claim of it."""
        self._connection.rows(QUERIES.end_sessions, {"session": session_of(owner)})
        return super().held_by(owner)

    def settle_dead(
        self, owner: str, settlements: Sequence[Settlement], now: float, worker: str | None = None, supervisor: str = ""
    ) -> int:
        """What it claimed after `held_by`, perhaps through a pooler that had its statement still, goes back, too."""
        if self._connection.row(QUERIES.worker, {"incarnation": owner}) is not None:
            self._may_be_late.setdefault(owner, 0)
        settled = super().settle_dead(owner, settlements, now, worker=worker, supervisor=supervisor)
        if owner in self._may_be_late:
            self._may_be_late[owner] += settled  # if what follows fails, this is done again, and has nothing to settle
            self._connection.rows(QUERIES.await_claims, {"owner": owner})
            late = [released(claim) for claim in super().held_by(owner)]
            super().settle_dead(owner, late, now, worker=worker)
            settled = self._may_be_late.pop(owner)
        return settled

    def _require_dead(self, raw: Any, supervisor: str) -> None:
        row = raw.execute(QUERIES.lock_lease, {"id": supervisor}).fetchone()
        if row is not None and row[0]:
            raise LeaseHeld("its supervisor has a lease again")


def operations(connection: Connection) -> Operations:
    return Operations(connection, PostgresRegistry(connection), PostgresStatistics(connection))


_PATIENCE = 0.5  # seconds that it waits for a row: as long, nobody is woken


class PostgresMaintenance(MaintenanceStore):
    _connection: Connection

    def __init__(self, address: Address) -> None:
        connection = Connection(address, announce=True, patience=_PATIENCE)
        registry, locks = PostgresRegistry(connection, patient=True), PostgresClaimLocks(connection)
        super().__init__(connection, registry, locks, PostgresBacklog(connection))


_COUNTED = 2_000_000  # rows that are read to count them


class PostgresStatistics(Statistics):
    """With those of the server; of a large table counts are estimates."""

    _connection: Connection

    def now(self) -> float:
        [(now,)] = self._connection.rows(QUERIES.clock)
        return float(now)

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        rows = self._connection.rows(QUERIES.count_closed, {"most": _COUNTED})
        return [(type_, Status(status), count) for type_, status, count in rows]

    def server(self) -> ServerView | None:
        """Raises StoreError."""
        [(time, standby, used, most, queue, sees_all)] = self._connection.rows(QUERIES.server_state)
        tables = [TableView(text_of(name), *rest) for name, *rest in self._connection.rows(QUERIES.table_rows)]
        found = self._connection.rows(QUERIES.keepers)  # of each kind the strongest
        keepers = [KeeperView(kind, text_of(who), *age) for kind, who, *age in found]
        powerless = [text_of(name) for (name,) in self._connection.rows(QUERIES.powerless)]
        return ServerView(
            time, standby, used, most, queue, sees_all, tables, keepers, self._connection.pooled, powerless
        )
