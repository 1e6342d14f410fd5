"""The whole table in plain Python: what each call of the store does, told by the rows that it moves."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from supervisor.domain.job import Claim, NewJob, Status, covers, high_enough
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Depth, Expired, JobSelector, SettledAndClaimed
from tests.model import rows
from tests.model.rows import FOREIGN, Row

UNFINISHED = (Status.PENDING, Status.RUNNING)


@dataclass
class Table:
    """`errors` holds (attempt, kind, message, worker) of each job, `ended` (job, token) of every claim whose
    end was written. New rows take their ids from `ids`, as an engine gave them out.
    """

    rows: dict[int, Row] = field(default_factory=dict)
    errors: dict[int, list[tuple[int, str, str, str | None]]] = field(default_factory=dict)
    ended: list[tuple[int, int]] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    ids: list[int] = field(default_factory=list)

    def put(self, row: Row) -> None:
        self.rows[row.id] = row

    # Enqueueing

    def enqueue(self, job: NewJob, now: float) -> int:
        twin = self.unfinished_twin(job.type, job.unique_key)
        if twin is not None:
            return twin
        row = rows.inserted(self.ids.pop(0), job, now)
        self.put(row)
        return row.id

    def unfinished_twin(self, type_: str, key: str | None) -> int | None:
        return next(
            (
                r.id
                for r in self.rows.values()
                if key and (r.type, r.unique_key) == (type_, key) and r.status in UNFINISHED
            ),
            None,
        )

    # Claiming and settling

    def settle_and_claim(
        self,
        owner: str,
        ends: Sequence[Settlement],
        wanted: JobSelector,
        want: int,
        lock_time: float,
        now: float,
        worker: str | None = None,
    ) -> SettledAndClaimed:
        # Plain successes are settled first, together.
        ordered = sorted(ends, key=lambda end: not end.simple)
        lost = [end.job_id for end in ordered if not self.settle(owner, end, now, worker)]
        return SettledAndClaimed(self.claim(owner, wanted, want, lock_time, now), lost)

    def claim(self, owner: str, wanted: JobSelector, want: int, lock_time: float, now: float) -> list[Claim]:
        found = sorted(self.claimable(wanted, now), key=lambda row: row.place)[: max(want, 0)]
        for row in found:
            self.put(rows.claimed(row, owner, now, now + lock_time))
        return [self.rows[row.id].claim for row in found]

    def claimable(self, wanted: JobSelector, now: float) -> list[Row]:
        return [row for row in self._suitable(wanted) if row.scheduled_at <= now]

    def _suitable(self, wanted: JobSelector) -> list[Row]:
        return [
            row
            for row in self.rows.values()
            if row.status is Status.PENDING
            and row.type in wanted.types
            and row.type not in self.paused
            and covers(wanted.capabilities, row.requires)
            and high_enough(row.priority, wanted.min_priority)
        ]

    def depth(self, wanted: JobSelector, now: float) -> Depth:
        times = sorted(row.scheduled_at for row in self._suitable(wanted))
        due = [at for at in times if at <= now]
        later = [at for at in times if at > now]
        return Depth(len(due), due[0] if due else None, self._next_due(wanted, now) if later else None)

    def _next_due(self, wanted: JobSelector, now: float) -> float | None:
        """Of groups with something due, the store does not look further: they are looked at again anyway."""
        first: dict[tuple[str, str, int], float] = {}
        for row in self._suitable(wanted):
            group = (row.type, row.requires, row.priority)
            first[group] = min(first.get(group, row.scheduled_at), row.scheduled_at)
        return min((at for at in first.values() if at > now), default=None)

    def settle(self, owner: str, end: Settlement, now: float, worker: str | None = None) -> bool:
        row = self.rows.get(end.job_id)
        after = rows.settled(row, owner, end, now) if row is not None else None
        if after is None:
            return False
        if owner == FOREIGN and after.claim_token == end.token:
            # The schema cannot tell it from the foreign program's own settlement.
            after = rows.foreign_end_stamped(after, time.time())
        self.put(after)
        self.ended.append((end.job_id, end.token))
        if end.failure is not None and end.failure.kind != "cancelled":
            error = (after.attempts - end.attempts, end.failure.kind, end.failure.message, worker)
            self.errors.setdefault(after.id, []).append(error)
        for child in end.children:
            self.enqueue(child, now)
        return True

    def held_by(self, owner: str) -> list[Claim]:
        held = [row for row in self.rows.values() if row.status is Status.RUNNING and row.locked_by == owner]
        return [row.claim for row in sorted(held, key=lambda row: row.place)]

    # Locks

    def renew(self, owners: Iterable[str], renew_before: float, expires_at: float) -> int:
        owners = set(owners)
        needy = [
            row
            for row in self.rows.values()
            if row.status is Status.RUNNING
            and row.locked_by in owners
            and row.lock_expires_at is not None
            and row.lock_expires_at < renew_before
        ]
        for row in needy:
            self.put(row._replace(lock_expires_at=expires_at))
        return len(needy)

    def expired(self, now: float) -> list[Expired]:
        return [
            row.expired
            for row in self.rows.values()
            if row.status is Status.RUNNING and (row.lock_expires_at is None or row.lock_expires_at < now)
        ]

    def reclaim(self, seen: Expired, settle: Callable[[Claim, str], Settlement], now: float) -> bool:
        row = self.rows.get(seen.job_id)
        if row is None or not rows.reclaimable(row, seen):
            return False
        if row.locked_by is None:
            row = rows.unowned_adopted(row, now)
            self.put(row)
        holder = row.locked_by or FOREIGN
        return self.settle(holder, settle(row.claim, holder), now)

    # Operating

    def cancel(self, job_id: int, now: float) -> Status | None:
        """None where the job's state does not allow it."""
        row = self.rows.get(job_id)
        after = rows.cancelled(row, now) if row is not None else None
        if after is None:
            return None
        self.put(after)
        return after.status

    def retry(self, ids: Iterable[int], now: float, *, done: bool = False) -> int:
        count = 0
        for job_id in ids:
            row = self.rows.get(job_id)
            after = rows.retried(row, now, done=done) if row is not None else None
            if after is not None and self.unfinished_twin(after.type, after.unique_key) is None:
                self.put(after)
                count += 1
        return count

    def delete(self, ids: Iterable[int]) -> int:
        gone = [job_id for job_id in dict.fromkeys(ids) if job_id in self.rows and self.rows[job_id].status.finished]
        for job_id in gone:
            self.forget(job_id)
        return len(gone)

    def forget(self, job_id: int) -> None:
        del self.rows[job_id]
        self.errors.pop(job_id, None)

    def prunable(self, done_before: float, failed_before: float) -> list[int]:
        limits = {
            Status.DONE: done_before,
            Status.CANCELLED: done_before,
            Status.FAILED: failed_before,
            Status.QUARANTINED: failed_before,
        }
        return [
            row.id
            for row in self.rows.values()
            if row.status in limits and row.completed_at is not None and row.completed_at < limits[row.status]
        ]
