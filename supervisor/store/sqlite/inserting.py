"""Inserts jobs into the table, for producers, handlers, schedules and callers' own transactions alike."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from collections.abc import Iterable
from functools import cache, lru_cache

from supervisor.domain.job import AlikeJobs, NewJob, NewJobs, unix_time
from supervisor.store.sql.connection import Queries, load, of_engine, with_parts
from supervisor.store.sql.inserting import Inserting, require_batches

# With a bare parameter as LIMIT, SQLite 3.53 compiles the statement again, triggers included, for each execution.
_LIMIT = re.compile(r"LIMIT\s+(?=:)")
QUERIES = Queries(
    {name: _LIMIT.sub("LIMIT +", sql) for name, sql in of_engine("supervisor.store.sqlite").statements.items()}
)

_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL


@cache
def gates() -> list[str]:
    """What makes the triggers that let jobs pass the gates."""
    return list(load("supervisor.store.sqlite", "gates.sql").statements.values())


def insert_whole(connection: sqlite3.Connection, jobs: NewJobs) -> list[int]:
    """All or none, also on a connection without a transaction."""
    if connection.in_transaction or (not isinstance(jobs, AlikeJobs) and len(jobs) == 1):
        return insert(connection, jobs, time.time())
    connection.execute("BEGIN")  # as the driver does before an INSERT, unless it commits each statement by itself
    try:
        ids = insert(connection, jobs, time.time())
        if _commits_by_itself(connection):
            connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.OperationalError):  # the error has ended the transaction
            connection.execute("ROLLBACK")
        raise
    return ids


def insert(raw: sqlite3.Connection, jobs: NewJobs, now: float) -> list[int]:
    cursor = plain_cursor(raw)
    require_batches(QUERIES, cursor, [jobs.job] if isinstance(jobs, AlikeJobs) else jobs)
    if isinstance(jobs, AlikeJobs):
        return _insert_alike(cursor, jobs, now) or _insert_each(cursor, _apart(cursor, jobs), now)
    return _insert_each(cursor, jobs, now)


def plain_cursor(raw: sqlite3.Connection) -> sqlite3.Cursor:
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may be anything
    return cursor


def _apart(cursor: sqlite3.Cursor, jobs: AlikeJobs) -> list[NewJob]:
    texts = [text for array in jobs.payloads for (text,) in cursor.execute(QUERIES.payloads, (array,))]
    return [jobs.job._replace(payload=text) for text in texts]


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether a caller's connection is in autocommit mode; Python 3.12 has two ways to say so."""
    autocommit = getattr(connection, "autocommit", _LEGACY)
    return connection.isolation_level is None if autocommit == _LEGACY else bool(autocommit)


def _insert_each(cursor: sqlite3.Cursor, jobs: Iterable[NewJob], now: float) -> list[int]:
    return [insert_or_find(cursor, job, now)[0] for job in jobs]


def _insert_job(raw: sqlite3.Connection | sqlite3.Cursor, job: NewJob, now: float | None) -> int | None:
    assert now is not None
    cursor = raw.execute(*_statement(QUERIES.insert_job, job, now))
    return cursor.lastrowid if cursor.rowcount == 1 else None


def _statement(statement: str, job: NewJob, now: float) -> tuple[str, tuple[object, ...]]:
    """With the columns that this job has, and its parameters."""
    type, payload, priority, requires, _, max_attempts, unique_key, extra, *_ = job
    values = type, payload, priority, requires, job.due(now), max_attempts, unique_key, now
    if not extra:
        return statement, values
    more = (unix_time(value, now) if isinstance(value, float) else value for value in extra.values())
    return _with_columns(statement, tuple(extra)), (*values, *more)


@lru_cache(maxsize=256)
def _with_columns(statement: str, names: tuple[str, ...]) -> str:
    return with_parts(statement, columns=names, values=[f"?{number}" for number in range(9, 9 + len(names))])


_SINGLE = Inserting(QUERIES, _insert_job)
insert_new, insert_or_find = _SINGLE.insert_new, _SINGLE.insert_or_find


def _insert_alike(cursor: sqlite3.Cursor, jobs: AlikeJobs, now: float) -> list[int]:
    """Twice as fast as one by one. Inserts nothing and returns no ids if a trigger has inserted rows in between, or has
    suppressed one of these.
    """
    raw, job = cursor.connection, jobs.job
    raw.execute("SAVEPOINT jobs_alike")
    try:
        for payloads in jobs.payloads:
            cursor.execute(*_statement(QUERIES.insert_alike, job._replace(payload=payloads), now))
        [(last,)] = cursor.execute("SELECT last_insert_rowid()")
        ids = range(last - jobs.total + 1, last + 1)
        [(there,)] = cursor.execute(QUERIES.inserted_at, (ids[0], last, now))
        if there == jobs.total:
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
