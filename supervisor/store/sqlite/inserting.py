"""Inserts jobs into the table, for producers, handlers and schedules alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import TypeVar

from supervisor.domain.errors import StoreError
from supervisor.domain.job import AlikeJobs, NewJob
from supervisor.store.sqlite import repair
from supervisor.store.sqlite.connection import QUERIES, Connection

Answer = TypeVar("Answer")


def with_room(connection: Connection, work: Callable[[sqlite3.Connection], Answer]) -> Answer:
    """Run `work`, which inserts jobs, in a transaction; once more if a row with the largest id had used up all ids."""
    try:
        with connection.write() as raw:
            return work(raw)
    except StoreError:
        if not has_run_out(connection):
            raise
    with connection.write() as raw:
        repair.renumber(raw)
        return work(raw)


def has_run_out(connection: Connection) -> bool:
    """Whether there are no more ids for jobs or for their failed attempts."""
    return repair.exhausted(connection.row(QUERIES.greatest_sequence))


def insert_job(cursor: sqlite3.Cursor, job: NewJob, now: float) -> bool:
    """Returns True if it is new (its id is `cursor.lastrowid`), False if it is a duplicate."""
    type, payload, priority, requires, due, max_attempts, unique_key, meta = job
    values = type, payload, priority, requires, now if due is None else due, max_attempts, unique_key, now
    if meta is None:  # as most are, and an adopted table may have a column of that name that needs a value
        cursor.execute(QUERIES.insert_job, values)
    else:
        cursor.execute(QUERIES.insert_job_with_meta, (*values, meta))
    return cursor.rowcount == 1 and cursor.lastrowid is not None


def insert_alike(cursor: sqlite3.Cursor, jobs: AlikeJobs, now: float) -> list[int]:
    """Twice as fast as one by one. Inserts nothing and returns no ids if a trigger has inserted rows in between, or has
    suppressed one of these.
    """
    raw, job = cursor.connection, jobs.job
    due = now if job.scheduled_at is None else job.scheduled_at
    raw.execute("SAVEPOINT jobs_alike")
    try:
        for payloads in jobs.payloads:
            values = job.type, payloads, job.priority, job.requires, due, job.max_attempts, now
            cursor.execute(QUERIES.insert_alike, values)
        [(last,)] = cursor.execute("SELECT last_insert_rowid()")
        ids = range(last - jobs.count + 1, last + 1)
        [(there,)] = cursor.execute(QUERIES.inserted_at, (ids[0], last, now))
        if there == jobs.count:
            return list(ids)
        raw.execute("ROLLBACK TO jobs_alike")
    except sqlite3.IntegrityError:  # inserting them one by one shows which
        if not raw.in_transaction:
            raise
        raw.execute("ROLLBACK TO jobs_alike")
    finally:
        if raw.in_transaction:  # a trigger may have ended it
            raw.execute("RELEASE jobs_alike")
    return []


def insert_children(raw: sqlite3.Connection, jobs: Sequence[NewJob], now: float) -> None:
    """Insert the jobs that a handler enqueued, in the transaction of its completion."""
    cursor = raw.cursor()
    for job in jobs:
        insert_job(cursor, job, now)
