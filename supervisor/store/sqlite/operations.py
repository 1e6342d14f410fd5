"""The operators' role: look at jobs, change their fate, steer the supervisors."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable

from supervisor.domain.errors import Conflict, JobNotFound, StoreError
from supervisor.domain.history import Minute
from supervisor.domain.job import Attempt, Job, Run, Status, shown
from supervisor.store.base import (
    Anomalies,
    Controls,
    Depth,
    ErrorGroup,
    Filter,
    JobSelector,
    Page,
    Planned,
    SupervisorRecord,
    TypeSpeed,
)
from supervisor.store.sqlite import failures, history, listing, measuring, owner
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import RowRefused
from supervisor.store.sqlite.intake import job_of
from supervisor.store.sqlite.isolation import one_by_one

_BATCH = 500  # rows a transaction of a bulk command: other writers get their turn in between


class SqliteOperations:
    """Implements `store.base.Operations`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.checkpoint_itself(not owner.supervised(self.supervisors(), connection.place))

    def jobs(
        self,
        *,
        status: Status | None,
        type: str | None,
        before: int | None,
        limit: int,
        tags: tuple[str, ...] = (),
    ) -> list[Job]:
        """The latest jobs first, however long that takes."""
        which = Filter(() if status is None else (status,), () if type is None else (type,), tags=tags)
        return listing.page(self._connection, which, before, limit, None).jobs

    def job(self, job_id: int) -> Job | None:
        row = self._connection.row(QUERIES.job, {"id": job_id})
        return None if row is None else job_of(row)

    def attempts(self, job_id: int) -> list[Attempt]:
        return [Attempt(*row) for row in self._connection.rows(QUERIES.job_errors, {"id": job_id})]

    def runs(self, job_id: int) -> list[Run]:
        """The runs that are worth a row, in their order."""
        return [Run(*row) for row in self._connection.rows(QUERIES.job_runs, {"id": job_id})]

    def worker_name(self, incarnation: str) -> str | None:
        """The name of the worker that a claim is of; None for another program's, and where it is gone."""
        row = self._connection.row(QUERIES.worker, {"incarnation": incarnation})
        return None if row is None else shown(row[3])

    def ids(self, which: Filter) -> list[int]:
        """All jobs that are meant, the earliest first."""
        return listing.ids(self._connection, which)

    def some_ids(self, which: Filter, *, before: int | None, limit: int) -> tuple[list[int], int | None]:
        """At most so many of them, the latest first, and the id before which to go on; None: that was all."""
        return listing.some_ids(self._connection, which, before, limit, None)

    def page(self, which: Filter, *, before: int | None, limit: int) -> Page:
        """Jobs that are meant, the latest first, after at most a bounded look; see `Page`."""
        return listing.page(self._connection, which, before, limit, listing.PATIENCE)

    def count(self, which: Filter, *, limit: int) -> int:
        """How many jobs are meant, counted no further than `limit`."""
        return listing.count(self._connection, which, limit)

    def error_groups(self, since: float, limit: int) -> list[ErrorGroup]:
        """Failed attempts since then, the most frequent first; only the latest 10,000 are looked at."""
        return failures.groups(self._connection, since)[:limit]

    def history(self, since: float) -> list[Minute]:
        """The minutes since then that the maintainer has kept, in their order."""
        return history.minutes(self._connection, since)

    def retry(self, ids: Iterable[int], now: float) -> int:
        """Put finished, unsuccessful jobs back with their counters reset. Returns how many it was.

        Skipped: jobs in another state, and those whose unique key is taken by an unfinished job.
        """
        return self._each(QUERIES.retry, ids=ids, now=now, then=QUERIES.forget_second_chances)

    def cancel(self, job_id: int, now: float) -> Status:
        """Cancel a pending job, or ask a running one to stop. Returns its status from then on."""
        with self._connection.write() as raw:
            if raw.execute(QUERIES.cancel_pending, {"id": job_id, "now": now}).rowcount:
                return Status.CANCELLED
            if raw.execute(QUERIES.request_cancel, {"id": job_id, "now": now}).rowcount:
                return Status.RUNNING
            row = raw.execute(QUERIES.job_status, {"id": job_id}).fetchone()
        if row is None:
            raise JobNotFound(job_id)
        raise Conflict(f"job {job_id} is {row[0]}; only a pending or running job can be cancelled")

    def cancel_all(self, ids: Iterable[int], now: float) -> int:
        """Cancel the pending ones of these jobs, ask the running ones to stop. Returns how many it was."""
        return self._each(QUERIES.cancel_pending, QUERIES.request_cancel, ids=ids, now=now)

    def delete(self, ids: Iterable[int]) -> int:
        """Delete finished jobs with their errors and runs. Returns how many; unfinished ones are left alone."""
        return self._each(QUERIES.delete_finished, ids=ids)

    def _each(self, *queries: str, ids: Iterable[int], now: float = 0.0, then: str = "") -> int:
        """Run the first query that changes a job, for each of them, and `then` for those that were changed.
        Returns how many it was."""
        pending, changed, refused = list(ids), 0, list[tuple[int, str]]()

        def change(raw: sqlite3.Connection, job_id: int) -> int:
            parameters = {"id": job_id, "now": now}
            if not any(raw.execute(query, parameters).rowcount for query in queries):
                return 0
            if then:
                raw.execute(then, parameters)
            return 1

        while pending:
            batch, pending = pending[:_BATCH], pending[_BATCH:]
            try:
                with self._connection.write() as raw:
                    changed += sum([change(raw, job_id) for job_id in batch])
            except RowRefused:
                some, others = one_by_one(self._connection, batch, change)
                changed, refused = changed + some, refused + others
        for job_id, why in refused:
            raise StoreError(
                f"the database refuses to have job {job_id} changed: {why}"
                + (f"; and {len(refused) - 1} others" if len(refused) > 1 else "")
                + (f"; {changed} other jobs were changed" if changed else "")
            )
        return changed

    def pause(self, type: str, now: float) -> None:
        self._connection.apply(QUERIES.set_control, {"kind": "paused", "name": type, "value": 1, "now": now})

    def resume(self, type: str) -> bool:
        """Returns whether it was paused."""
        return bool(self._connection.apply(QUERIES.clear_control, {"kind": "paused", "name": type}))

    def scale(self, pool: str, workers: int | None, now: float) -> None:
        """Fix a pool's size; None gives it back to automatic scaling."""
        if workers is None:
            self._connection.apply(QUERIES.clear_control, {"kind": "workers", "name": pool})
        else:
            control = {"kind": "workers", "name": pool, "value": workers, "now": now}
            self._connection.apply(QUERIES.set_control, control)

    def request_reload(self, now: float) -> None:
        self._connection.apply(QUERIES.bump_reload, {"now": now})

    def controls(self) -> Controls:
        return measuring.controls(self._connection)

    def counts(self) -> list[tuple[str, Status, int]]:
        """All jobs, by type and status; reads the whole table."""
        return self.open_counts() + self.closed_counts()

    def open_counts(self) -> list[tuple[str, Status, int]]:
        """Jobs that are unfinished, failed or quarantined, by type and status; costs what there are of them."""
        counts: Counter[tuple[str, str]] = Counter()
        for type_, status, number in self._connection.rows(QUERIES.count_open):
            counts[shown(type_), status] += number
        return [(type_, Status(status), number) for (type_, status), number in counts.items()]

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        """Done and cancelled jobs, by type and status; reads the whole table."""
        return [(shown(row[0]), Status(row[1]), row[2]) for row in self._connection.rows(QUERIES.count_closed)]

    def depth(self, wanted: JobSelector, now: float, limit: int) -> Depth:
        return measuring.depth(self._connection, wanted, now, limit)

    def log_size(self) -> int:
        """Bytes of the write-ahead log."""
        return measuring.log_size(self._connection)

    def backlog(self, now: float, limit: int) -> dict[str, Depth]:
        """What waits of each type, whoever may take it; due jobs are counted up to `limit`."""
        return measuring.backlog(self._connection, now, limit)

    def unhandled(self, types: Iterable[str]) -> list[str]:
        return measuring.unhandled(self._connection, types)

    def requirements(self, now: float) -> list[tuple[str, str]]:
        """(type, requires) of what due jobs require, each once."""
        return measuring.requirements(self._connection, now)

    def failures(self, since: float) -> list[tuple[str, int]]:
        """Failed attempts since then, by type."""
        return [(shown(row[0]), row[1]) for row in self._connection.rows(QUERIES.failures_by_type, {"since": since})]

    def speeds(self) -> list[TypeSpeed]:
        return [TypeSpeed(shown(row[0]), *row[1:]) for row in self._connection.rows(QUERIES.slowest_types)]

    def schedules(self) -> list[Planned]:
        """Every schedule that was ever planned on this database, by name."""
        return [Planned(*row) for row in self._connection.rows(QUERIES.schedules)]

    def remains(self, now: float, slack: float, done_before: float, failed_before: float) -> Anomalies:
        """What should not be lying about; may take seconds on a large table."""
        return measuring.remains(self._connection, now, slack, done_before, failed_before)

    def supervisors(self) -> list[SupervisorRecord]:
        return measuring.supervisors(self._connection)

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None:
        return owner.lives(supervisor, self._connection.place)

    def insist_on_writing(self) -> None:
        """Raises StoreError if nothing can be written just now; tries for as long as any writer would."""
        with self._connection.write():
            return

    def insist_on_file(self) -> None:
        """Raises StoreGone if the file was removed or replaced since we opened it."""
        self._connection.insist_on_file()

    def close(self) -> None:
        self._connection.close()
