"""The locks of claimed jobs: what a dead worker held is settled only while its supervisor has no lease."""

from __future__ import annotations

from typing import Any

from supervisor.domain.errors import LeaseHeld
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.claim_locks import SqlClaimLocks


class PostgresClaimLocks(SqlClaimLocks):
    """Implements `store.base.ClaimLocks`."""

    def _require_dead(self, raw: Any, supervisor: str) -> None:
        row = raw.execute(QUERIES.lock_lease, {"id": supervisor}).fetchone()
        if row is not None and row[0]:
            raise LeaseHeld("its supervisor has a lease again")
