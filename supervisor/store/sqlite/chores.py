"""The maintainer's role: registry, recovery, renewal, reclaim, measuring, pruning, checkpoints."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

from supervisor.domain.errors import StoreBusy, StoreError, StoreUnavailable
from supervisor.domain.history import Minute, QueueSizes
from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Failure, Settlement
from supervisor.store.base import (
    Controls,
    Cursor,
    Depth,
    Expired,
    JobSelector,
    SettleExpired,
    SupervisorRecord,
    WorkerRecord,
)
from supervisor.store.sqlite import history, measuring, owner, repair
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT, RowRefused
from supervisor.store.sqlite.inserting import has_run_out
from supervisor.store.sqlite.isolation import one_by_one, set_aside
from supervisor.store.sqlite.settling import Outcomes, Singly, record

_UNREADABLE = "what it requires is no valid UTF-8"
_BOUND = 500  # rows a statement


class SqliteChores:
    """Implements `store.base.Chores`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._singly = Singly(connection)

    def version(self) -> int:
        """Changes whenever another connection has committed. Costs microseconds."""
        row = self._connection.row("PRAGMA data_version")
        return int(row[0]) if row else 0

    def insist_on_file(self) -> None:
        """Raises StoreGone if the file was removed or replaced since we opened it."""
        self._connection.insist_on_file()

    # The registry

    def supervisors(self) -> list[SupervisorRecord]:
        return measuring.supervisors(self._connection)

    def register(self, supervisor: SupervisorRecord) -> None:
        self._connection.apply(QUERIES.register_supervisor, supervisor._asdict())

    def forget_supervisor(self, supervisor: str) -> None:
        """Strike a supervisor that has ended; its workers' rows must have been settled before."""
        self._connection.apply(QUERIES.forget_supervisor, {"id": supervisor})
        owner.remove_owner_files(supervisor, (other.id for other in self.supervisors()), self._connection.place)

    def workers_of(self, supervisor: str) -> list[WorkerRecord]:
        return [WorkerRecord(*row) for row in self._connection.rows(QUERIES.workers_of, {"supervisor": supervisor})]

    def worker(self, incarnation: str) -> WorkerRecord | None:
        row = self._connection.row(QUERIES.worker, {"incarnation": incarnation})
        return None if row is None else WorkerRecord(*row)

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None:
        """True or False where this machine can tell, None where it cannot."""
        return owner.lives(supervisor, self._connection.place)

    # Claims of the dead and of the living

    def held_by(self, owner: str) -> list[Claim]:
        """A worker's claims, in the order in which it runs them."""
        return [Claim._make(row) for row in self._connection.rows(QUERIES.held_by, {"owner": owner})]

    def settle_dead(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        now: float,
        *,
        worker: str | None = None,
    ) -> int:
        """Settle what a dead worker held and strike it from the registry, in one transaction.

        Returns how many claims were settled; one that is no longer current counts for nothing. Raises StoreError
        where a row allows nothing at all; the others are settled then.
        """
        try:
            with self._connection.write() as raw:
                lost = Outcomes(owner, settlements, now, worker=worker).write(raw, now)
                raw.execute(QUERIES.forget_worker, {"incarnation": owner})
        except StoreError as error:
            if not (isinstance(error, RowRefused) or has_run_out(self._connection)):
                raise
            lost, _, stuck = self._singly.settle(owner, settlements, now, worker=worker)
            for job_id, why in stuck:
                raise StoreError(f"the database refuses what becomes of job {job_id}: {why}") from None
            self._connection.apply(QUERIES.forget_worker, {"incarnation": owner})
        return len(settlements) - len(lost)

    def renew(self, owners: Iterable[str], renew_before: float, expires_at: float) -> int:
        """Extend locks that run out before `renew_before`. Without such a lock nothing is written."""
        which: dict[str, Any] = {"owners": json.dumps(list(owners)), "renew_before": renew_before}
        if self._connection.row(QUERIES.needs_renewal, which) is None:
            return 0
        which["expires_at"] = expires_at
        try:
            return self._connection.apply(QUERIES.renew, which)
        except RowRefused:
            jobs = [job for (job,) in self._connection.rows(QUERIES.to_renew, which)]
            renew = QUERIES.renew_one
            return one_by_one(
                self._connection, jobs, lambda raw, job: raw.execute(renew, which | {"id": job}).rowcount
            )[0]

    def expired(self, now: float, limit: int) -> list[Expired]:
        return [Expired(*row) for row in self._connection.rows(QUERIES.expired, {"now": now, "limit": limit})]

    def writable(self) -> bool:
        """Whether the write lock can be had just now; tries for as long as any writer would."""
        try:
            with self._connection.write():
                return True
        except StoreBusy:
            return False

    def reclaim(self, claim: Expired, settle: SettleExpired, now: float) -> bool:
        """Take back one expired claim if it is still exactly as it was seen."""
        seen = {"id": claim.job_id, "token": claim.token, "expires_at": claim.expires_at}
        try:
            with self._connection.write() as raw:
                row = raw.execute(QUERIES.claim_of, seen).fetchone()
                if row is None or (row[8] or "") != claim.owner:
                    return False
                current, holder = Claim._make(row[:8]), row[8]
                if not isinstance(holder, str):
                    raw.execute(QUERIES.adopt_unowned, {"id": claim.job_id, "token": claim.token, "now": now})
                    current, holder = current._replace(token=current.token + 1), "foreign"
                return not Outcomes(holder, [settle(current, holder)], now).write(raw, now)
        except RowRefused as error:
            aside = set_aside(
                self._connection,
                claim.job_id,
                str(error),
                now,
                token=claim.token,
                owner=claim.owner,
                expires_at=claim.expires_at,
            )
            if not aside:
                raise
            return True

    def cancels(self, supervisor: str, limit: int) -> list[tuple[int, int, str]]:
        """(job id, token, owner) of the jobs that this supervisor's workers run and somebody wants stopped."""
        rows = self._connection.rows(QUERIES.cancels, {"supervisor": supervisor, "limit": limit})
        return [(job, token, owner) for job, token, owner in rows]

    # Measuring

    def any_due(self, wanted: JobSelector, now: float) -> bool:
        return measuring.any_due(self._connection, wanted, now)

    def depth(self, wanted: JobSelector, now: float, limit: int) -> Depth:
        depth = measuring.depth(self._connection, wanted, now, limit)
        if self._connection.unreadable:
            self._refuse_unreadable(wanted, now)
        return depth

    def _refuse_unreadable(self, wanted: JobSelector, now: float) -> None:
        """Fail jobs whose requirements cannot be read: they would wait for ever, and nobody would know why."""
        unreadable, types = self._connection.unreadable, json.dumps(wanted.types)
        try:
            with self._connection.write() as raw:
                for requires in unreadable:
                    about = {"types": types, "requires": requires, "error": _UNREADABLE, "now": now, "limit": _BOUND}
                    for (job_id,) in raw.execute(QUERIES.refuse_unreadable, about).fetchall():
                        failure = Failure("requires", _UNREADABLE)
                        record(raw, Settlement(job_id, 0, Status.FAILED), failure, None, now)
        except StoreUnavailable:
            raise
        except StoreError:
            return  # a rule of the application's refuses it: they wait on, and nothing else waits for them
        finally:
            unreadable.clear()

    def unhandled(self, types: Iterable[str]) -> list[str]:
        return measuring.unhandled(self._connection, types)

    def unfinished(self, wanted: JobSelector, now: float) -> bool:
        """Whether anything is due, or delayed for another attempt: what a burst waits for."""
        types = {"types": json.dumps(wanted.types), "capabilities": wanted.capabilities}
        return bool(self.depth(wanted, now, 1).due or self._connection.row(QUERIES.awaiting_retry, types))

    def has_claims(self, supervisor: str) -> bool:
        """Whether any worker of this supervisor still holds a claim."""
        return self._connection.row(QUERIES.has_claims, {"supervisor": supervisor}) is not None

    def progress_of(self, types: Iterable[str], since: float) -> tuple[int, int]:
        """(jobs pending, jobs failed or quarantined since then) of these types."""
        listed = {"types": json.dumps(list(types)), "since": since}
        pending = self._connection.row(QUERIES.count_pending, listed)
        failed = self._connection.row(QUERIES.unsuccessful_since, listed)
        return (pending[0] if pending else 0, failed[0] if failed else 0)

    def controls(self) -> Controls:
        return measuring.controls(self._connection)

    # History

    def queue_sizes(self, now: float) -> list[QueueSizes]:
        """How each type with due or running jobs stands."""
        return history.queue_sizes(self._connection, now)

    def counted(self, supervisor: str) -> str:
        """What was noted with the last minutes that were recorded for it; "{}" at first."""
        return history.counted(self._connection, supervisor)

    def record_minutes(self, supervisor: str, before: str, after: str, minutes: Sequence[Minute]) -> bool:
        """Add to the history and note `after`, in one transaction; or neither, if what is noted is not `before`."""
        return history.record(self._connection, supervisor, (before, after), minutes)

    def forget_history(self, before: float) -> int:
        """Delete minutes that began before then. Without any nothing is written."""
        return history.forget(self._connection, before)

    # The file

    def prune(self, after: int, limit: int, done_before: float, failed_before: float) -> tuple[int, int]:
        """Look at `limit` rows after an id. Returns (jobs deleted, id reached; 0 at the end of the table)."""
        row = self._connection.row(QUERIES.prune_until, {"after": after, "limit": limit})
        if row is None or row[0] is None:
            return 0, 0
        bounds = {"after": after, "until": row[0], "done_before": done_before, "failed_before": failed_before}
        try:
            with self._connection.write() as raw:
                deleted = raw.execute(QUERIES.prune, bounds).rowcount
                _prune_others(raw, bounds)
        except RowRefused:  # rows of the application's own tables point at some of these jobs: those stay
            with self._connection.write() as raw:
                _prune_others(raw, bounds)
            jobs = [job for (job,) in self._connection.rows(QUERIES.prunable, bounds)]
            delete = QUERIES.delete_finished
            deleted, _ = one_by_one(self._connection, jobs, lambda raw, job: raw.execute(delete, {"id": job}).rowcount)
        return deleted, row[0]

    def revive(
        self, wanted: JobSelector, times: int, after: Cursor, until: float, limit: int, now: float
    ) -> tuple[list[int], Cursor]:
        """Look at `limit` jobs that failed after a mark and not after `until` (Unix seconds), and put those that
        are wanted and had fewer than `times` second chances back to pending. Returns (their ids, the new mark).
        """
        rows = self._connection.rows(
            QUERIES.failed_after,
            {
                "failed_at": after.failed_at,
                "id": after.job_id,
                "until": until,
                "types": json.dumps(wanted.types),
                "capabilities": wanted.capabilities,
                "times": times,
                "limit": limit,
            },
        )
        if not rows:
            return [], after
        revived: list[int] = []

        def retry(raw: sqlite3.Connection, job_id: int) -> int:
            changed = raw.execute(QUERIES.retry, {"id": job_id, "now": now}).rowcount
            if changed:
                raw.execute(QUERIES.note_second_chance, {"id": job_id})
            return changed

        # Few, and a rule of the application's own may keep one of them where it is.
        for job_id in (row[1] for row in rows if row[2]):
            if one_by_one(self._connection, [job_id], retry)[0]:
                revived.append(job_id)
        return revived, Cursor(rows[-1][0], rows[-1][1])

    def checkpoint(self) -> int:
        """Copy the log into the database as far as readers allow. Returns the frames still in the log."""
        with self._connection.exclusive_writers() as raw:
            _, frames, copied = raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return max(0, int(frames) - int(copied))

    def truncate_log(self) -> bool:
        """Give the space of a log back that is all copied; False if somebody reads or writes this very moment."""
        with self._connection.exclusive_writers() as raw:
            raw.execute("PRAGMA busy_timeout = 0")  # nobody waits for this
            try:
                busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                raw.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT * 1000:.0f}")
        return not busy

    def log_size(self) -> int:
        """Bytes of the write-ahead log."""
        return measuring.log_size(self._connection)

    def inserted(self) -> int:
        """How many jobs were ever inserted, by whomever."""
        row = self._connection.row(QUERIES.inserted)
        if has_run_out(self._connection):
            with self._connection.write() as raw:
                repair.renumber(raw)
            return 0
        return int(row[0]) if row else 0

    def yield_to_others(self) -> None:
        """Programs that know nothing of our lock are writing: leave them more of the time."""
        self._connection.be_generous()

    def close(self) -> None:
        self._connection.close()


def _prune_others(raw: sqlite3.Connection, bounds: dict[str, Any]) -> None:
    raw.execute(QUERIES.prune_errors, {"before": bounds["failed_before"]})
    for query in (QUERIES.prune_runs, QUERIES.prune_batch_limits, QUERIES.prune_second_chances):
        raw.execute(query, bounds)
