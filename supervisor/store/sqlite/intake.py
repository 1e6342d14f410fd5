"""The programs' role: put jobs in, durably, and look at them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence

from supervisor.domain.job import Job, NewJob, Status, decoded
from supervisor.store.sqlite.connection import QUERIES, Connection, Row
from supervisor.store.sqlite.settling import insertion


class SqliteIntake:
    """Implements `store.base.Intake`. Its connection commits with synchronous=FULL."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def enqueue(self, jobs: Sequence[NewJob], *, connection: sqlite3.Connection | None = None) -> list[int]:
        """Insert jobs in one transaction and return their ids; a duplicate key returns the existing job's.

        On the caller's own connection nothing is locked or committed here: the jobs exist if and only if
        the caller's transaction commits. Its errors reach the caller as they are.
        """
        now = time.time()
        if connection is not None:
            return _insert(connection, jobs, now)
        with self._connection.write() as raw:
            return _insert(raw, jobs, now)

    def job(self, job_id: int) -> Job | None:
        row = self._connection.row(QUERIES.job, {"id": job_id})
        return None if row is None else job_of(row)

    def status(self, job_id: int) -> Status | None:
        row = self._connection.row(QUERIES.job_status, {"id": job_id})
        return None if row is None else Status(row[0])

    def close(self) -> None:
        self._connection.close()


def _insert(raw: sqlite3.Connection, jobs: Sequence[NewJob], now: float) -> list[int]:
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may turn rows into anything
    ids = []
    for job in jobs:
        parameters = insertion(job, now)
        cursor.execute(QUERIES.insert_job, parameters)
        if cursor.rowcount == 1 and cursor.lastrowid is not None:
            ids.append(cursor.lastrowid)
        else:
            ids.append(cursor.execute(QUERIES.find_unique, parameters).fetchone()[0])
    return ids


def job_of(row: Row) -> Job:
    """A `jobs` row, in the order of Job's fields, as the value that users see."""
    fields = list(row)
    fields[2] = decoded(fields[2])
    fields[3] = Status(fields[3])
    fields[17] = decoded(fields[17])
    return Job(*fields)
