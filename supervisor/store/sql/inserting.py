"""Inserting jobs, whatever the engine: those with unique keys are found, or inserted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from supervisor.domain.errors import Conflict, DuplicateJob, InvalidJob
from supervisor.domain.job import Delay, NewJob
from supervisor.store.sql.connection import Queries, RowRefused, Transaction

Answer = TypeVar("Answer")
Now = float | None  # Unix seconds; None: by the server's clock

_TRIES = 10  # without a transaction, others may insert, start or end one with the key between two statements

Put = tuple[int, bool]
"""The id of a job, and whether it is new."""


class Inserting:
    """Inserts single jobs. `insert_job` inserts one and returns its id, or None if the database has ignored it: then
    another one may have its key.
    """

    def __init__(self, queries: Queries, insert_job: Callable[[Any, NewJob, Now], int | None]) -> None:
        self._queries = queries
        self._insert_job = insert_job

    def insert_or_find(self, raw: Transaction, job: NewJob, now: Now) -> Put:
        """A job that is not new is the one with its key. Raises DuplicateJob if it is to, and Conflict if anything else
        keeps it out; InvalidJob for an unknown batch, or job to wait for.
        """
        if job.extra:
            require_batches(self._queries, raw, [job])
        lock = self._queries.statements.get("lock_key") if "unique_for" in job.extra else None
        for _ in range(_TRIES):
            # Looked for first: an INSERT of a duplicate uses up an id, and the commit would write that.
            if job.unique_key is not None and (row := self._twin(raw, job, now)) is not None:
                if self._agreed(raw, job, now, *row):
                    return int(row[0]), False
                continue
            if lock:  # or one might be inserted and done before the INSERT: only then does nothing else notice it
                raw.execute(lock, {"type": job.type, "key": job.unique_key})
                lock = None
                continue
            job_id = self._insert_after(raw, job, now) if job.after else self._insert_job(raw, job, now)
            if job_id is not None:
                return job_id, True
        raise Conflict(f"a job of type {job.type!r} breaks a UNIQUE rule of the jobs table, or a trigger refuses it")

    def _twin(self, raw: Transaction, job: NewJob, now: Now) -> tuple[Any, ...] | None:
        """The id and the status of the job that has its key."""
        query = self._queries.find_recent if "unique_for" in job.extra else self._queries.find_unique
        key = {"type": job.type, "unique_key": job.unique_key, "now": now}
        twin: tuple[Any, ...] | None = raw.execute(query, key).fetchone()
        return twin

    def _agreed(self, raw: Transaction, job: NewJob, now: Now, twin: int, status: str) -> bool:
        """Do what is to be done if another job has the key. False: it has started since it was looked for."""
        if job.on_duplicate == "error":
            raise DuplicateJob(twin)
        if job.on_duplicate != "replace" or status not in ("pending", "held"):
            return True
        due, after = (None, job.scheduled_at) if isinstance(job.scheduled_at, Delay) else (job.scheduled_at, None)
        times = {"due": due, "due_after": after, "now": now}
        values = {"id": twin, "payload": job.payload, "priority": job.priority} | times
        replaced = raw.execute(self._queries.replace_waiting, values).fetchall()
        statements = self._queries.statements
        for statement in (statements.get("refill_gates"), statements.get("announce")):  # what an engine needs
            if replaced and statement is not None:
                raw.execute(statement, values)
        return bool(replaced)

    def _insert_after(self, raw: Transaction, job: NewJob, now: Now) -> int | None:
        """A job that waits for others. Raises InvalidJob if one of them does not exist."""
        before = {"ids": json.dumps(job.after)}
        there = {row[0] for row in raw.execute(self._queries.existing, before).fetchall()}
        if missing := sorted(set(job.after) - there):
            raise InvalidJob("after", f"there is no job {missing[0]}")
        job_id = self._insert_job(raw, job._replace(extra={**job.extra, "status": "held", "hold": "after"}), now)
        if job_id is not None:
            raw.execute(self._queries.follow, before | {"job": job_id, "on_failed": job.on_failed})
        return job_id

    def insert_new(self, raw: Transaction, job: NewJob, now: Now) -> int | None:
        """Returns its id; None for a duplicate of a unique key. Raises RowRefused if anything else keeps it out."""
        try:
            job_id, new = self.insert_or_find(raw, job, now)
        except (Conflict, InvalidJob) as error:
            raise RowRefused(str(error)) from None
        return job_id if new else None


def require_batches(queries: Queries, raw: Transaction, jobs: Iterable[NewJob]) -> None:
    """Raises InvalidJob if one of these names a batch that does not exist."""
    for batch in {job.extra["batch"] for job in jobs if "batch" in job.extra}:
        if raw.execute(queries.batch, {"id": batch}).fetchone() is None:
            raise InvalidJob("batch", f"there is no batch {batch}")


def in_order_of_keys(jobs: Sequence[NewJob]) -> Sequence[int]:
    """The places of these jobs in the order in which one transaction inserts them: those with unique keys first, by
    their keys, for which it may have to wait. So no two transactions wait for each other.
    """
    if sum(job.unique_key is not None for job in jobs) < 2:
        return range(len(jobs))
    return sorted(range(len(jobs)), key=lambda place: _after(jobs[place]))


def _after(job: NewJob) -> tuple[bool, str, str]:
    return (False, job.type, job.unique_key) if job.unique_key is not None else (True, "", "")


def in_places(places: Sequence[int], answers: Sequence[Answer]) -> list[Answer]:
    """What came in the order of these places, in the order of the jobs."""
    return [answer for _, answer in sorted(zip(places, answers, strict=True), key=itemgetter(0))]
