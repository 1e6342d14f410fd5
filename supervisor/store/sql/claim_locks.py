"""The locks of claimed jobs: renewing, reclaiming, and settling what dead workers held."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Expired, SettleExpired
from supervisor.store.sql.connection import Connection, RowRefused, Transaction
from supervisor.store.sql.refused_rows import one_by_one, quarantine
from supervisor.store.sql.rows import held_by
from supervisor.store.sql.settling import Singly, settle


class SqlClaimLocks:
    """Implements `store.base.ClaimLocks`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries, self._insert = connection.queries, connection.inserter.insert
        self._singly = Singly(connection)

    def held_by(self, owner: str) -> list[Claim]:
        return held_by(self._connection, owner)

    def has_claims(self, supervisor: str) -> bool:
        return self._connection.row(self._queries.has_claims, {"supervisor": supervisor}) is not None

    def settle_dead(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        now: float,
        *,
        worker: str | None = None,
        supervisor: str = "",
    ) -> int:
        try:
            with self._connection.write() as raw:
                if supervisor:
                    self._require_dead(raw, supervisor)
                lost = [
                    s.job_id
                    for s in sorted(settlements, key=lambda s: s.job_id)  # the order in which rows are locked
                    if not settle(self._queries, self._insert, raw, owner, s, now, worker)
                ]
                raw.execute(self._queries.forget_worker, {"incarnation": owner})
        except StoreError as error:
            if not (isinstance(error, RowRefused) or self._connection.inserter.has_run_out()):
                raise
            lost, _, stuck = self._singly.settle(owner, settlements, now, worker=worker)
            for job_id, why in stuck:
                raise StoreError(f"the database refuses what becomes of job {job_id}: {why}") from None
            self._connection.apply(self._queries.forget_worker, {"incarnation": owner})
        return len(settlements) - len(lost)

    def _require_dead(self, raw: Transaction, supervisor: str) -> None:
        """Raises StoreError if it has a lease again. Without leases, who has ended has ended."""

    def renew(self, owners: Iterable[str], renew_before: float, expires_at: float) -> int:
        which: dict[str, Any] = {"owners": json.dumps(list(owners)), "renew_before": renew_before}
        if self._connection.row(self._queries.needs_renewal, which) is None:
            return 0
        which["expires_at"] = expires_at
        try:
            return self._connection.apply(self._queries.renew, which)
        except RowRefused:
            jobs = [job for (job,) in self._connection.rows(self._queries.to_renew, which)]
            renew = self._queries.renew_one
            return one_by_one(
                self._connection, jobs, lambda raw, job: raw.execute(renew, which | {"id": job}).rowcount
            )[0]

    def expired(self, now: float, limit: int) -> list[Expired]:
        return [Expired(*row) for row in self._connection.rows(self._queries.expired, {"now": now, "limit": limit})]

    def writable(self) -> bool:
        try:
            with self._connection.write():
                return True
        except StoreBusy:
            return False

    def reclaim(self, claim: Expired, decide: SettleExpired, now: float) -> bool:
        seen = {"id": claim.job_id, "token": claim.token, "expires_at": claim.expires_at}
        try:
            with self._connection.write() as raw:
                row = raw.execute(self._queries.claim_of, seen).fetchone()
                if row is None or (row[8] or "") != claim.owner:
                    return False
                current, holder = Claim._make(row[:8]), row[8]
                if not isinstance(holder, str):
                    raw.execute(self._queries.adopt_unowned, {"id": claim.job_id, "token": claim.token, "now": now})
                    current, holder = current._replace(token=current.token + 1), "foreign"
                return settle(self._queries, self._insert, raw, holder, decide(current, holder), now, None)
        except RowRefused as error:
            quarantined = quarantine(
                self._connection,
                claim.job_id,
                str(error),
                now,
                token=claim.token,
                owner=claim.owner,
                expires_at=claim.expires_at,
            )
            if not quarantined:
                raise
            return True
