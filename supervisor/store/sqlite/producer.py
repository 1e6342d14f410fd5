"""Enqueueing jobs, durably, and looking at them."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence

from supervisor.domain.errors import Conflict
from supervisor.domain.job import Job, NewJob, Status
from supervisor.store.sqlite import registry, schema
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.inserting import insert_job, plain_insertion, with_room
from supervisor.store.sqlite.place import Place
from supervisor.store.sqlite.rows import job_of, status_of

_CHECK_EVERY = 10.0  # seconds between two checks whether a supervisor is running


class SqliteTransactionalInsert:
    """Implements `store.base.TransactionalInsert` for connections of the standard library's driver."""

    def __init__(self, place: Place, migrate: Callable[[], object]) -> None:
        self._place = place
        self._migrate = migrate
        self.used = False  # since a producer of this engine last wrote

    def prepare(self, connection: sqlite3.Connection, *, create: bool) -> bool:
        return schema.prepare(connection, self._place, create=create, migrate=self._migrate)

    def insert(self, connection: sqlite3.Connection, jobs: Sequence[NewJob]) -> list[int]:
        self.used = True
        return insert(connection, jobs, time.time())


class SqliteProducer:
    """Implements `store.base.Producer`. Its connection commits with synchronous=FULL.

    Checkpoints are the maintainer's; this connection makes them only while no supervisor is running.
    """

    def __init__(self, connection: Connection, transactional: SqliteTransactionalInsert) -> None:
        self._connection = connection
        self._transactional = transactional
        self._check_at = 0.0

    def enqueue(self, jobs: Sequence[NewJob]) -> list[int]:
        if self._transactional.used:  # by connections that do not use our lock: leave them more of the time
            self._transactional.used = False
            self._connection.yield_to_others()
        if time.monotonic() >= self._check_at:
            self._check_at = time.monotonic() + _CHECK_EVERY
            self._connection.checkpoint_itself(not registry.supervised(self._connection))
        return with_room(self._connection, lambda raw: insert(raw, jobs, time.time()))

    def put(self, job: NewJob) -> tuple[int, bool]:
        def put(raw: sqlite3.Connection) -> tuple[int, bool]:
            found = raw.execute(QUERIES.find_unique, {"type": job.type, "unique_key": job.unique_key}).fetchone()
            return (found[0], False) if found else (insert(raw, [job], time.time())[0], True)

        return with_room(self._connection, put)

    def job(self, job_id: int) -> Job | None:
        row = self._connection.row(QUERIES.job, {"id": job_id})
        return None if row is None else job_of(row)

    def status(self, job_id: int) -> Status | None:
        row = self._connection.row(QUERIES.job_status, {"id": job_id})
        return None if row is None else status_of(row[0])

    def gone(self) -> bool:
        return self._connection.moved

    def close(self) -> None:
        self._connection.close()


def insert(raw: sqlite3.Connection, jobs: Sequence[NewJob], now: float) -> list[int]:
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may be anything
    if len(jobs) > 1 and raw.in_transaction and all(job.unique_key is None and job.meta is None for job in jobs):
        return _insert_at_once(cursor, jobs, now) or _insert_each(cursor, jobs, now)
    return _insert_each(cursor, jobs, now)


def _insert_at_once(cursor: sqlite3.Cursor, jobs: Sequence[NewJob], now: float) -> list[int]:
    """Four times as fast. Inserts nothing and returns no ids if a trigger has inserted rows in between, or has
    suppressed one of these.
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
    except sqlite3.IntegrityError:  # inserting them one by one shows which
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
            # An adopted table; or, in autocommit, the other job has just finished.
            raise Conflict(f"a job of type {job.type!r} breaks a UNIQUE rule of the jobs table")
    return ids
