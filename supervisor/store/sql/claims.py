"""Claims: made and settled by workers, renewed and taken back by maintainers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.sql.backlog import JobSelector, selected
from supervisor.store.sql.connection import (
    IGNORED,
    Concern,
    Connection,
    Row,
    RowRefused,
    Transaction,
    change_each,
    quarantine,
)
from supervisor.store.sql.registry import WorkerRecord
from supervisor.store.sql.settling import Refused, settle, settle_singly


class SettledAndClaimed(NamedTuple):
    """What one exchange did: the new claims, and the settlements refused because their claim was lost.

    `refused` are (job, why) of rows that the database would not have changed: they are quarantined. A worker that is
    not `registered` any more is given no claims. `doubtful`: the session is not that of the exchange
    before, or a claim was lost: the server may have undone what it had committed last.
    """

    claims: list[Claim]
    lost: list[int]
    refused: Sequence[tuple[int, str]] = ()
    registered: bool = True
    doubtful: bool = False


class Expired(NamedTuple):
    """A claim whose lock has expired, exactly as it was read. Times are Unix seconds, 0 if missing."""

    job_id: int
    token: int
    owner: str
    expires_at: float
    claimed_at: float = 0.0


SettleExpired = Callable[[Claim, str], Settlement]
"""Decides what becomes of an expired claim of an owner, inside the transaction that reclaims it."""


class _Held(Concern):
    def held_by(self, owner: str) -> list[Claim]:
        """A worker's claims, in the order in which it runs them."""
        return [Claim._make(row) for row in self._connection.rows(self._queries.held_by, {"owner": owner})]


_ROUNDS = 20  # attempts to claim, while only refused rows are found
_MOST_STUCK = 1000
_STUCK_FOR = 60.0  # seconds: the constraint may have been dropped in the meantime


class Claims(_Held):
    """A worker claims jobs and settles them."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._worker: str | None = None
        self._stuck: dict[int, float] = {}  # rows that cannot even be quarantined, and when (monotonic) to try again

    def register(self, worker: WorkerRecord) -> None:
        """Write the worker's row. It must exist before its first claim, so that recovery can judge it."""
        self._worker = worker.name
        self._connection.apply(self._queries.register_worker, worker._asdict())

    def settle_and_claim(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        wanted: JobSelector,
        want: int,
        lock_time: float,
        now: float,
        *,
        posted: bool = False,
    ) -> SettledAndClaimed:
        """Settle, then claim up to `want` due jobs, best first. With nothing to do, nothing is locked.

        `posted`: somebody has just seen a due job, so it is not looked for before locking.
        """
        if not settlements and (want < 1 or not (posted or self._anything_due(wanted, now))):
            return SettledAndClaimed([], [])
        mark = {"owner": owner, "now": now, "expires_at": now + lock_time}
        try:
            return self._exchange(settlements, wanted, want, mark)
        except RowRefused:
            return self._exchange_singly(settlements, wanted, want, mark)

    # What an engine does in its own way

    def _anything_due(self, wanted: JobSelector, now: float) -> bool:
        """A look that costs less than taking a lock in vain."""
        return True

    def _exchange(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> SettledAndClaimed:
        """All in one transaction. Raises RowRefused if a row does not allow that. `mark` has the `owner`, `now`, and
        when the locks expire.
        """
        raise NotImplementedError

    # One row per transaction, after one of them was refused

    def _exchange_singly(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> SettledAndClaimed:
        lost, refused, _ = settle_singly(self._connection, mark["owner"], settlements, mark["now"], self._worker)
        claims = self._claim_singly(wanted, want, mark, refused) if want > 0 else []
        return SettledAndClaimed(claims, lost, refused or ())

    def _claim_singly(
        self, wanted: JobSelector, want: int, mark: dict[str, Any], refused: list[Refused]
    ) -> list[Claim]:
        """Adds quarantined rows to `refused`."""
        self._stuck = {job: until for job, until in self._stuck.items() if until > monotonic()}
        claims: list[Claim] = []
        for _ in range(_ROUNDS):  # while everything that is found is refused
            found = self._candidates(wanted, mark["now"], want)
            for job_id in found:
                claims += self._claim_alone(job_id, mark, refused)
            if claims or not found:
                break
        return claims

    def _candidates(self, wanted: JobSelector, now: float, want: int) -> list[int]:
        """The ids of the first due rows, best first, without stuck ones."""
        found: list[tuple[int, float, int]] = []
        for type_, requires, priority, first_at in self._connection.rows(self._queries.groups, selected(wanted)):
            if isinstance(first_at, (int, float)) and first_at <= now:
                group = {"type": type_, "requires": requires, "priority": priority, "now": now}
                rows = self._connection.rows(self._queries.peek_group, group | {"want": want + len(self._stuck)})
                found += [(-priority, at, job_id) for at, job_id in rows]
        return [job_id for _, _, job_id in sorted(found) if job_id not in self._stuck][:want]

    def _claim_alone(self, job_id: int, mark: dict[str, Any], refused: list[Refused]) -> list[Claim]:
        token: object = None
        try:
            with self._connection.write() as raw:
                found = raw.execute(self._queries.pending_token, (job_id,)).fetchone()
                if found is None:
                    return []  # another worker has it
                token = found[0]
                rows = raw.execute(self._queries.claim_ids, mark | {"ids": json.dumps([job_id])}).fetchall()
                refuse_impossible(rows, len(rows))
            return [Claim._make(row) for row in rows]
        except RowRefused as error:
            if quarantine(self._connection, job_id, str(error), mark["now"], token=token):
                refused.append((job_id, str(error)))
            elif len(self._stuck) < _MOST_STUCK:
                self._stuck[job_id] = monotonic() + _STUCK_FOR
            return []

    # Beside that

    def show_progress(
        self, owner: str, runs: Sequence[tuple[int, int]], fraction: float, text: str, now: float
    ) -> None:
        """Store how far these runs, (job, token) each, are; those whose claims are lost stay as they are."""
        shared = {"owner": owner, "fraction": fraction, "text": text, "now": now}
        with self._connection.write() as raw:
            for job, token in sorted(runs):
                raw.execute(self._queries.show_progress, shared | {"id": job, "token": token})

    def limits(self, jobs: Sequence[int]) -> Mapping[int, int]:
        """The largest batch that each job may run in, for those whose batch has failed before."""
        return dict(self._connection.rows(self._queries.batch_limits, {"jobs": json.dumps(list(jobs))}))

    def be_patient(self, seconds: float | None) -> None:
        """How long other writers are waited for from now on; None for as long as usual. Raises StoreError."""
        self._connection.be_patient(seconds)

    def close(self) -> None:
        self._connection.close()


def refuse_impossible(rows: list[Row], marked: int) -> None:
    """Raises RowRefused if a trigger has silently kept a row from being marked, or if one has an impossible id.

    Ids below 1 mean "no job" to the scoreboard: nobody could limit, cancel or charge such a run.
    """
    if not marked:
        raise RowRefused(IGNORED)
    for row in rows:
        if row[0] < 1:
            raise RowRefused(f"{row[0]} is not an id")


class ClaimLocks(_Held):
    """The locks of claimed jobs: renewed for live workers, reclaimed when they expire, released for dead workers."""

    def has_claims(self, supervisor: str) -> bool:
        """Whether any worker of this supervisor still holds a claim."""
        return self._connection.row(self._queries.has_claims, {"supervisor": supervisor}) is not None

    def settle_dead(
        self, owner: str, settlements: Sequence[Settlement], now: float, worker: str | None = None, supervisor: str = ""
    ) -> int:
        """Settle what a dead worker held and remove it from the registry, in one transaction: or nothing of that, with
        LeaseHeld, if `supervisor` is given and has a lease again.

        Returns how many claims were settled; one that is no longer current does not count. Raises StoreError if a row
        can neither be settled nor quarantined; the others are settled even then.
        """
        try:
            with self._connection.write() as raw:
                if supervisor:
                    self._require_dead(raw, supervisor)
                lost = [
                    s.job_id
                    for s in sorted(settlements, key=lambda s: s.job_id)  # the order in which rows are locked
                    if not settle(self._connection, raw, owner, s, now, worker)
                ]
                raw.execute(self._queries.forget_worker, {"incarnation": owner})
        except RowRefused:
            lost, _, stuck = settle_singly(self._connection, owner, settlements, now, worker)
            for job_id, why in stuck:
                raise StoreError(f"the database refuses what becomes of job {job_id}: {why}") from None
            self._connection.apply(self._queries.forget_worker, {"incarnation": owner})
        return len(settlements) - len(lost)

    def _require_dead(self, raw: Transaction, supervisor: str) -> None:
        """Raises StoreError if it has a lease again. Without leases, who has ended has ended."""

    def renew(self, owners: Iterable[str], renew_before: float, expires_at: float) -> int:
        """Extend locks that expire before `renew_before`. Without such a lock nothing is written."""
        which: dict[str, Any] = {"owners": json.dumps(list(owners)), "renew_before": renew_before}
        if self._connection.row(self._queries.needs_renewal, which) is None:
            return 0
        which["expires_at"] = expires_at
        try:
            return self._connection.apply(self._queries.renew, which)
        except RowRefused:
            jobs = [job for (job,) in self._connection.rows(self._queries.to_renew, which)]

        def renew(raw: Transaction, jobs: Sequence[int]) -> int:
            return sum(raw.execute(self._queries.renew_one, which | {"id": job}).rowcount for job in jobs)

        return change_each(self._connection, jobs, renew)[0]

    def expired(self, now: float, limit: int) -> list[Expired]:
        return [Expired(*row) for row in self._connection.rows(self._queries.expired, {"now": now, "limit": limit})]

    def writable(self) -> bool:
        """Whether the database can be written now; waits for as long as any writer would."""
        try:
            with self._connection.write():
                return True
        except StoreBusy:
            return False

    def reclaim(self, claim: Expired, decide: SettleExpired, now: float) -> bool:
        """Take back one expired claim if it is still exactly as it was seen."""
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
                return settle(self._connection, raw, holder, decide(current, holder), now, None)
        except RowRefused as error:
            seen_as: dict[str, Any] = {"token": claim.token, "owner": claim.owner, "expires_at": claim.expires_at}
            if not quarantine(self._connection, claim.job_id, str(error), now, **seen_as):
                raise
            return True
