"""The locks of claimed jobs: what a dead worker held is settled only while its supervisor has no lease."""

from __future__ import annotations

from typing import Any

from supervisor.domain.errors import LeaseHeld
from supervisor.domain.job import Claim
from supervisor.store.postgres.connection import session_of
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.claim_locks import SqlClaimLocks


class PostgresClaimLocks(SqlClaimLocks):
    """Implements `store.base.ClaimLocks`."""

    def held_by(self, owner: str) -> list[Claim]:
        """The sessions of the dead worker are ended first, since the server may yet carry out a claim of it."""
        self._connection.rows(QUERIES.end_sessions, {"session": session_of(owner)})
        return super().held_by(owner)

    def _require_dead(self, raw: Any, supervisor: str) -> None:
        row = raw.execute(QUERIES.lock_lease, {"id": supervisor}).fetchone()
        if row is not None and row[0]:
            raise LeaseHeld("its supervisor has a lease again")
