"""Inserts jobs into the table, for producers, handlers and schedules alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from supervisor.domain.errors import StoreError
from supervisor.domain.job import AlikeJobs, NewJob
from supervisor.store.queries import Queries, of_engine
from supervisor.store.sql.connection import Connection, RowRefused, Transaction

QUERIES: Queries = of_engine("supervisor.store.sqlite")

Answer = TypeVar("Answer")

_LAST = (1 << 62) - (
    1 << 40
)  # the table's CHECK allows ids up to the first of these; so many are to be left behind one


class Inserter:
    """Implements `store.sql.connection.Inserter`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def with_room(self, work: Callable[[Any], Answer]) -> Answer:
        """Once more if a row with the largest id had used up all ids."""
        try:
            with self._connection.write() as raw:
                return work(raw)
        except StoreError:
            if not self.has_run_out():
                raise
        with self._connection.write() as raw:
            renumber(raw)
            return work(raw)

    def has_run_out(self) -> bool:
        row = self._connection.row(QUERIES.greatest_sequence)
        return row is not None and row[0] is not None and int(row[0]) > _LAST

    def insert(self, raw: sqlite3.Connection, job: NewJob, now: float) -> int | None:
        return insert_new(raw, job, now)


def renumber(raw: Transaction) -> None:
    """Give jobs with impossible ids the next free ones, and continue behind those. Inside the caller's transaction.

    Behind the greatest id there is room for no other, so that nobody could enqueue any more; and somebody may well
    insert a job with that. So this is called after a failed insertion, and by the maintainer.
    """
    for statement in (
        QUERIES.renumber_errors,  # first: the next one writes there, too
        QUERIES.continue_errors,
        QUERIES.note_renumbered,
        QUERIES.renumber_jobs,
        QUERIES.continue_jobs,
    ):
        raw.execute(statement, {"last": _LAST})


def insert_new(raw: sqlite3.Connection, job: NewJob, now: float) -> int | None:
    """Returns its id; None for a duplicate of a unique key. Raises RowRefused if anything else keeps it out."""
    cursor = raw.cursor()
    if insert_job(cursor, job, now):
        return cursor.lastrowid
    key = {"type": job.type, "unique_key": job.unique_key}
    if job.unique_key is not None and cursor.execute(QUERIES.find_unique, key).fetchone():
        return None
    raise RowRefused(f"a job of type {job.type!r} breaks a UNIQUE rule of the jobs table, or a trigger refuses it")


def insert_job(cursor: sqlite3.Cursor, job: NewJob, now: float) -> bool:
    """Returns True if it is new (its id is `cursor.lastrowid`), False if it is a duplicate."""
    type, payload, priority, requires, _, max_attempts, unique_key, meta, *_ = job
    values = type, payload, priority, requires, job.due(now), max_attempts, unique_key, now
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
    raw.execute("SAVEPOINT jobs_alike")
    try:
        for payloads in jobs.payloads:
            values = job.type, payloads, job.priority, job.requires, job.due(now), job.max_attempts, now
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
