"""The programs' role: put jobs in, durably, and look at them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from supervisor.domain.errors import Conflict
from supervisor.domain.job import Job, NewJob, Status, decoded, shown
from supervisor.store.sqlite import measuring, owner
from supervisor.store.sqlite.connection import QUERIES, Connection, Row
from supervisor.store.sqlite.inserting import insert_job, plain_insertion, with_room

_LOOK = 10.0  # seconds between two looks whether a supervisor lives


_TEXTS = (5, 10, 15, 18)  # requires, locked_by, unique_key, last_error in a Job


class SqliteIntake:
    """Implements `store.base.Intake`. Its connection commits with synchronous=FULL.

    Checkpoints are the maintainer's; only while no supervisor lives does this connection make them.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._look_at = 0.0

    def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        """Insert jobs in one transaction and return their ids; a duplicate key returns the existing job's."""
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _LOOK
            self._connection.checkpoint_itself(not self._supervised())
        return with_room(self._connection, lambda raw: insert(raw, jobs, time.time()))

    def put(self, job: NewJob) -> tuple[int, bool]:
        """Insert one job. Returns its id and whether it is a new one's: a duplicate key names the existing job."""

        def put(raw: sqlite3.Connection) -> tuple[int, bool]:
            found = raw.execute(QUERIES.find_unique, {"type": job.type, "unique_key": job.unique_key}).fetchone()
            return (found[0], False) if found else (insert(raw, [job], time.time())[0], True)

        return with_room(self._connection, put)

    def _supervised(self) -> bool:
        return owner.supervised(measuring.supervisors(self._connection), self._connection.place)

    def job(self, job_id: int) -> Job | None:
        row = self._connection.row(QUERIES.job, {"id": job_id})
        return None if row is None else job_of(row)

    def status(self, job_id: int) -> Status | None:
        row = self._connection.row(QUERIES.job_status, {"id": job_id})
        return None if row is None else status_of(row[0])

    def yield_to_others(self) -> None:
        """Programs that know nothing of our lock are writing: leave them more of the time."""
        self._connection.be_generous()

    def gone(self) -> bool:
        """Whether the file was removed or replaced since it was opened: then open another intake."""
        return self._connection.moved

    def close(self) -> None:
        self._connection.close()


def insert(raw: sqlite3.Connection, jobs: Sequence[NewJob], now: float) -> list[int]:
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may turn rows into anything
    if len(jobs) > 1 and raw.in_transaction and all(job.unique_key is None and job.meta is None for job in jobs):
        return _insert_at_once(cursor, jobs, now) or _insert_each(cursor, jobs, now)
    return _insert_each(cursor, jobs, now)


def _insert_at_once(cursor: sqlite3.Cursor, jobs: Sequence[NewJob], now: float) -> list[int]:
    """Four times as fast. Nothing is inserted, and no id returned, where a trigger has inserted others in between, or
    has kept one of them away.
    """
    raw = cursor.connection
    raw.execute("SAVEPOINT jobs_at_once")
    try:
        cursor.executemany(QUERIES.insert_plain, (plain_insertion(job, now) for job in jobs))
        [(last,)] = cursor.execute("SELECT last_insert_rowid()")
        ids = range(last - len(jobs) + 1, last + 1)
        [(there,)] = cursor.execute(QUERIES.inserted_at, (ids[0], last, now))
        if there == len(jobs):
            return list(ids)
        raw.execute("ROLLBACK TO jobs_at_once")
    except sqlite3.IntegrityError:  # of one of them: which it is shows when each is inserted for itself
        if not raw.in_transaction:
            raise
        raw.execute("ROLLBACK TO jobs_at_once")
    finally:
        if raw.in_transaction:  # a trigger may have ended it
            raw.execute("RELEASE jobs_at_once")
    return []


def _insert_each(cursor: sqlite3.Cursor, jobs: Sequence[NewJob], now: float) -> list[int]:
    ids = []
    for job in jobs:
        if insert_job(cursor, job, now):
            ids.append(cursor.lastrowid or 0)
        elif row := cursor.execute(QUERIES.find_unique, {"type": job.type, "unique_key": job.unique_key}).fetchone():
            ids.append(row[0])
        else:
            # On an adopted table; or, in autocommit, the job that was in the way has just finished.
            raise Conflict(f"a job of type {job.type!r} breaks a UNIQUE rule of the jobs table")
    return ids


def status_of(value: object) -> Status:
    """The state that a column names. What is none, written past the table's CHECK, counts as quarantined: nobody runs
    such a row.
    """
    try:
        return Status(shown(value))
    except ValueError:
        return Status.QUARANTINED


def job_of(row: Row) -> Job:
    """A `jobs` row, in the order of Job's fields, as the value that users see."""
    fields = list(row)
    fields[1] = shown(fields[1])
    for index in _TEXTS:
        if not isinstance(fields[index], str) and fields[index] is not None:
            fields[index] = shown(fields[index])
    fields[2] = decoded(fields[2])
    fields[3] = status_of(row[3])
    if fields[3] != row[3] and not fields[18]:
        fields[18] = f"its status is {shown(row[3])!r}, which is none"
    fields[17] = decoded(fields[17])
    fields[23] = decoded(fields[23])
    return Job(*fields)
