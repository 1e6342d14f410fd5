"""Inserts jobs into the table, for producers, handlers and schedules alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from supervisor.domain.errors import StoreError
from supervisor.domain.job import NewJob
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
    cursor.execute(_statement(job), insertion(job, now))
    return cursor.rowcount == 1 and cursor.lastrowid is not None


def insert_children(raw: sqlite3.Connection, jobs: Sequence[NewJob], now: float) -> None:
    """Insert the jobs that a handler enqueued, in the transaction of its completion."""
    cursor = raw.cursor()
    for job in jobs:
        insert_job(cursor, job, now)


def _statement(job: NewJob) -> str:
    """Most jobs have no meta, and an adopted table may have a column of that name that needs a value."""
    return QUERIES.insert_job if job.meta is None else QUERIES.insert_job_with_meta


def plain_insertion(job: NewJob, now: float) -> tuple[object, ...]:
    """The parameters of `insert_plain`, for a job without a key and without meta."""
    due = now if job.scheduled_at is None else job.scheduled_at
    return job.type, job.payload, job.priority, job.requires, due, job.max_attempts, now


def insertion(job: NewJob, now: float) -> dict[str, Any]:
    return job._asdict() | {"scheduled_at": now if job.scheduled_at is None else job.scheduled_at, "now": now}
