"""Enqueueing jobs, durably, and looking at them."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Callable, Iterable

from supervisor.domain.errors import Conflict
from supervisor.domain.job import AlikeJobs, Job, NewJob, NewJobs, Status
from supervisor.store.sqlite import registry, schema
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.inserting import insert_alike, insert_job, with_room
from supervisor.store.sqlite.place import Place
from supervisor.store.sqlite.rows import job_of, status_of

_LEGACY = -1  # sqlite3.LEGACY_TRANSACTION_CONTROL
_CHECK_EVERY = 10.0  # seconds between two checks whether a supervisor is running


class SqliteTransactionalInsert:
    """Implements `store.base.TransactionalInsert` for connections of the standard library's driver."""

    def __init__(self, place: Place, migrate: Callable[[], object]) -> None:
        self._place = place
        self._migrate = migrate
        self.used = False  # since a producer of this engine last wrote
        self._made = False  # tables, in a transaction that may be rolled back

    def prepare(self, connection: sqlite3.Connection, *, create: bool) -> bool:
        there = schema.prepare(connection, self._place, create=create, migrate=self._migrate)
        if there and self._made and connection.in_transaction:
            return False  # it may be the transaction that has made them
        self._made = not there
        return there

    def insert(self, connection: sqlite3.Connection, jobs: NewJobs) -> list[int]:
        self.used = True
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


class SqliteProducer:
    """Implements `store.base.Producer`. Its connection commits with synchronous=FULL.

    Checkpoints are the maintainer's; this connection makes them only while no supervisor is running.
    """

    def __init__(self, connection: Connection, transactional: SqliteTransactionalInsert) -> None:
        self._connection = connection
        self._transactional = transactional
        self._check_at = 0.0

    def enqueue(self, jobs: NewJobs) -> list[int]:
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


def insert(raw: sqlite3.Connection, jobs: NewJobs, now: float) -> list[int]:
    cursor = raw.cursor()
    cursor.row_factory = None  # the caller's may be anything
    if isinstance(jobs, AlikeJobs):
        return insert_alike(cursor, jobs, now) or _insert_each(cursor, _apart(cursor, jobs), now)
    return _insert_each(cursor, jobs, now)


def _apart(cursor: sqlite3.Cursor, jobs: AlikeJobs) -> list[NewJob]:
    texts = [text for array in jobs.payloads for (text,) in cursor.execute(QUERIES.payloads, (array,))]
    return [jobs.job._replace(payload=text) for text in texts]


def _commits_by_itself(connection: sqlite3.Connection) -> bool:
    """Whether a caller's connection is in autocommit mode; Python 3.12 has two ways to say so."""
    autocommit = getattr(connection, "autocommit", _LEGACY)
    return connection.isolation_level is None if autocommit == _LEGACY else bool(autocommit)


def _insert_each(cursor: sqlite3.Cursor, jobs: Iterable[NewJob], now: float) -> list[int]:
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
