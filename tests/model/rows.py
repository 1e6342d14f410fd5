"""The rows of the jobs table in plain Python: what each statement of the store makes of one row.

The state machine holds these to the real store, statement by statement; the search of the protocol moves
the same rows through every interleaving.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from supervisor.domain.job import Claim, Job, NewJob, Status
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Expired
from tests.model.guards import ALL, Guards

FOREIGN = "foreign"


class Row(NamedTuple):
    """All that decides, and all that users see, but for the two times that any program may write."""

    id: int
    type: str
    payload: Any = None
    status: Status = Status.PENDING
    priority: int = 0
    requires: str = ""
    scheduled_at: float = 0.0
    attempts: int = 0
    max_attempts: int | None = None
    crashes: int = 0
    locked_by: str | None = None
    locked_at: float | None = None
    lock_expires_at: float | None = None
    claim_token: int = 0
    cancel_requested_at: float | None = None
    unique_key: str | None = None
    progress: float | None = None
    result: Any = None
    last_error: str | None = None
    started_at: float | None = None
    completed_at: float | None = None

    @property
    def place(self) -> tuple[int, float, int]:
        """Lower ones are claimed first."""
        return -self.priority, self.scheduled_at, self.id

    @property
    def claim(self) -> Claim:
        """The claim that holds it now."""
        payload = json.dumps(self.payload, separators=(",", ":"))
        counters = self.attempts, self.max_attempts, self.crashes
        return Claim(self.id, self.claim_token, self.type, payload, *counters, due_at=self.scheduled_at)

    @property
    def expired(self) -> Expired:
        return Expired(
            self.id, self.claim_token, self.locked_by or "", self.lock_expires_at or 0.0, self.locked_at or 0.0
        )


def row_of(job: Job) -> Row:
    return Row(*(getattr(job, name) for name in Row._fields))


def inserted(job_id: int, job: NewJob, now: float) -> Row:
    return Row(
        job_id,
        job.type,
        json.loads(job.payload),
        priority=job.priority,
        requires=job.requires,
        scheduled_at=job.due(now),
        max_attempts=job.max_attempts,
        unique_key=job.unique_key,
    )


def claimed(row: Row, owner: str, now: float, expires_at: float, guards: Guards = ALL) -> Row:
    return row._replace(
        status=Status.RUNNING,
        locked_by=owner,
        locked_at=now,
        lock_expires_at=expires_at,
        claim_token=row.claim_token + guards.claim_raises_token,
        attempts=row.attempts + 1,
        started_at=now,
    )


def settled(row: Row, owner: str, end: Settlement, now: float, guards: Guards = ALL) -> Row | None:
    """What a settlement makes of the row; None where the claim is lost."""
    if (
        (guards.settle_matches_running and row.status is not Status.RUNNING)
        or (guards.settle_matches_owner and row.locked_by != owner)
        or (guards.settle_matches_token and row.claim_token != end.token)
    ):
        return None
    status, stopped = end.status, row.cancel_requested_at is not None
    if stopped and status in (Status.PENDING, Status.FAILED):
        status = Status.CANCELLED
    error = None if end.failure is None else end.failure.message
    row = row._replace(
        status=status,
        result=None if end.result is None else json.loads(end.result),
        progress=end.progress,
        attempts=max(row.attempts + end.attempts, 0),
        crashes=row.crashes + end.crashes,
        scheduled_at=now + end.delay if end.delay > 0 else row.scheduled_at,
        started_at=end.started_at if end.simple or end.started_at is not None else row.started_at,
        completed_at=None if status is Status.PENDING else now,
        last_error=None if end.status is Status.DONE else error or row.last_error,
        claim_token=row.claim_token + (guards.put_back_raises_token and end.status is Status.PENDING),
    )
    return row._replace(locked_by=None, locked_at=None, lock_expires_at=None) if guards.settle_clears_owner else row


def reclaimable(row: Row, seen: Expired, guards: Guards = ALL) -> bool:
    """Whether an expired claim still is exactly as it was seen."""
    return (
        row.status is Status.RUNNING
        and (row.locked_by or "") == seen.owner
        and (row.claim_token == seen.token or not guards.reclaim_matches_token)
        and ((row.lock_expires_at or 0.0) == seen.expires_at or not guards.reclaim_matches_expiry)
    )


def unowned_adopted(row: Row, now: float) -> Row:
    """A row that was marked running without a claim gets one before it is taken back."""
    return row._replace(locked_by=FOREIGN, claim_token=row.claim_token + 1, lock_expires_at=now)


def cancelled(row: Row, now: float) -> Row | None:
    if row.status is Status.PENDING:
        return row._replace(
            status=Status.CANCELLED, completed_at=now, cancel_requested_at=now, claim_token=row.claim_token + 1
        )
    if row.status is Status.RUNNING:
        return row if row.cancel_requested_at is not None else row._replace(cancel_requested_at=now)
    return None


def retried(row: Row, now: float, *, done: bool = False) -> Row | None:
    allowed = (Status.FAILED, Status.QUARANTINED, Status.CANCELLED, *((Status.DONE,) if done else ()))
    if row.status not in allowed:
        return None
    return row._replace(
        status=Status.PENDING,
        attempts=0,
        crashes=0,
        scheduled_at=now,
        claim_token=row.claim_token + 1,
        completed_at=None,
        cancel_requested_at=None,
        progress=None,
        result=None,
    )


def foreign_move(row: Row, status: Status, now: float, lock_time: float) -> Row:
    """What the schema makes of another program's `UPDATE jobs SET status = …`: ignored, or stamped."""
    if row.status is status:
        return row
    held_by_ours = row.status is Status.RUNNING and row.locked_by not in (None, FOREIGN)
    if held_by_ours or (row.status.finished and status is not Status.PENDING):
        return row
    row = row._replace(status=status)
    if status is not Status.RUNNING:
        return foreign_end_stamped(row, now)
    return row._replace(
        locked_by=FOREIGN,
        locked_at=now,
        lock_expires_at=now + lock_time,
        claim_token=row.claim_token + 1,
        started_at=now,
        completed_at=None,
    )


def foreign_end_stamped(row: Row, now: float) -> Row:
    """A foreign program has settled, released or requeued it."""
    completed_at = None if row.status is Status.PENDING else now
    token = row.claim_token + 1
    return row._replace(
        locked_by=None, locked_at=None, lock_expires_at=None, claim_token=token, completed_at=completed_at
    )
