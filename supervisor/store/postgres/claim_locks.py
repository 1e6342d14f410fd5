"""The locks of claimed jobs: what a dead worker held is settled only while its supervisor has no lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.domain.errors import LeaseHeld
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement, released
from supervisor.store.postgres.connection import Connection, session_of
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.claim_locks import SqlClaimLocks


class PostgresClaimLocks(SqlClaimLocks):
    """Implements `store.base.ClaimLocks`."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        # How many jobs of dead workers were settled, until none of their claims is on its way.
        self._may_be_late: dict[str, int] = {}

    def held_by(self, owner: str) -> list[Claim]:
        """The sessions of the dead worker are ended first, since the server may yet carry out a claim of it."""
        self._connection.rows(QUERIES.end_sessions, {"session": session_of(owner)})
        return super().held_by(owner)

    def settle_dead(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        now: float,
        *,
        worker: str | None = None,
        supervisor: str = "",
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
