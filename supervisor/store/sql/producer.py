"""What every engine's producer shares: looking at jobs, requests that wait for one, and whose transaction it is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence, Set
from typing import Any

from supervisor.domain.errors import InvalidJob, QueueFull
from supervisor.domain.job import Job, JobEvent, NewJob, NewJobs
from supervisor.store.moving import MOVED_TO
from supervisor.store.queries import Queries
from supervisor.store.sql.connection import Connection, Transaction
from supervisor.store.sql.jobs import event_of, job_of
from supervisor.store.sql.stores import Operations

_LOOK_EVERY = 0.5  # seconds


class Producer:
    """Programs enqueue jobs and look at them. Its own commits survive power loss, unless a job need not be durable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._look_at = time.monotonic() + _LOOK_EVERY

    def enqueue(self, jobs: NewJobs) -> list[int]:
        """Insert jobs in one transaction and return their ids; a duplicate key returns the existing job's id."""
        raise NotImplementedError

    def put(self, job: NewJob) -> tuple[int, bool]:
        """Insert a job, or find one by its key. Returns its id, and whether it is new. Raises QueueFull: see NewJob."""
        raise NotImplementedError

    def put_each(self, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
        """`put` for each of these, in one transaction: the answers or the errors of each.

        If one is refused, or a write has failed before the commit, each is put by itself. Raises what concerns them
        all: the transaction could not begin, or it is unknown whether it was committed.
        """
        raise NotImplementedError

    def make_durable(self) -> None:
        """Whatever has been committed survives power loss. Raises StoreError if that cannot be ensured."""
        raise NotImplementedError

    @property
    def operations(self) -> Operations:
        """On the same connection: it is closed with the producer."""
        raise NotImplementedError

    def _put_alone(self, job: NewJob) -> tuple[int, bool] | Exception:
        try:
            return self.put(job)
        except Exception as error:
            return error

    def job(self, job_id: int) -> Job | None:
        row = self._connection.row(self._connection.queries.job, {"id": job_id})
        return None if row is None else job_of(row)

    def events(self, ids: Collection[int]) -> dict[int, JobEvent]:
        """How these jobs are now, by id; those that do not exist are missing."""
        rows = self._connection.rows(self._connection.queries.job_events, {"ids": json.dumps(list(ids))})
        return {row[0]: event_of(row) for row in rows}

    def moved_to(self) -> str:
        """The URL of the database to which all jobs were moved; empty if they were not."""
        row = self._connection.row(self._connection.queries.meta, {"key": MOVED_TO})
        return "" if row is None else str(row[0])

    def gone(self) -> bool:
        """Whether this is no longer the database that the URL names, or its jobs were moved: then open another.

        Looked up twice a second: inserts are refused at once, and looks may be late.
        """
        if time.monotonic() < self._look_at:
            return False
        self._look_at = time.monotonic() + _LOOK_EVERY
        return bool(self.moved_to())

    def close(self) -> None:
        self._connection.close()


Put = tuple[int, bool]
"""The id of a job, and whether it is new."""


class Requests:
    """The jobs with `once` or `max_waiting` of one transaction. `now` is Unix seconds, where the clock is ours.

    `alone` is the statement after which no other transaction inserts such jobs, if writing alone does not ensure it.
    A job waits for those that have at least its priority. They are counted once for each type, priority and limit, and
    then by what is inserted.
    """

    def __init__(self, queries: Queries, raw: Transaction, now: float | None = None, alone: str = "") -> None:
        self._queries = queries
        self._raw = raw
        self._now = now
        self._alone = alone
        self._waiting: dict[tuple[str, int, int], int] = {}

    def put(self, job: NewJob, insert_or_find: Callable[[NewJob], Put]) -> Put:
        """Insert the job with the given function, or find one with its key. Raises QueueFull."""
        if not job.once and job.max_waiting is None:
            return insert_or_find(job)
        self.begin()
        if (found := self._earlier(job)) is not None:
            return found, False
        if job.max_waiting is not None and self._ahead(job, job.max_waiting) >= job.max_waiting:
            raise QueueFull(job.type, job.max_waiting)
        job_id, new = insert_or_find(job)
        if new and job.max_waiting is not None:
            for type, priority, limit in self._waiting:
                if type == job.type and priority <= job.priority:
                    self._waiting[type, priority, limit] += 1
        return job_id, new

    def begin(self) -> None:
        """Before anything else that such a transaction may have to wait for: others wait for its end."""
        if self._alone:
            self._raw.execute(self._alone)
            self._alone = ""

    def put_or_full(self, job: NewJob, insert_or_find: Callable[[NewJob], Put]) -> Put | Exception:
        """The same for one of several jobs: that one finds no room concerns no other."""
        try:
            return self.put(job, insert_or_find)
        except QueueFull as error:
            return error

    def _earlier(self, job: NewJob) -> int | None:
        if job.unique_key is None:
            return None
        query = self._queries.find_once if job.once else self._queries.find_unique
        row = self._raw.execute(query, {"type": job.type, "unique_key": job.unique_key}).fetchone()
        return None if row is None else int(row[0])

    def _ahead(self, job: NewJob, limit: int) -> int:
        """How many due jobs are claimed no later than this one, counted up to the limit."""
        key = job.type, job.priority, limit
        if key not in self._waiting:
            which: dict[str, Any] = {"type": job.type, "priority": job.priority, "now": self._now, "limit": limit}
            self._waiting[key] = int(self._raw.execute(self._queries.count_waiting, which).fetchone()[0])
        return self._waiting[key]


SESSIONS = {"sqlalchemy.Session", "sqlalchemy.scoped_session"}
ASYNC_SESSIONS = {"sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection", "sqlalchemy.async_scoped_session"}
DJANGO = {"django.ConnectionProxy", "django.BaseDatabaseWrapper"}
_FACTORIES = {"sqlalchemy.Engine", "sqlalchemy.AsyncEngine", "sqlalchemy.sessionmaker", "sqlalchemy.async_sessionmaker"}


def kinds_of(connection: object) -> set[str]:
    """The classes of an object as `package.Class`, with the outermost package."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}


def of_framework(connection: Any, kinds: Set[str], vendor: str) -> Any:
    """The driver's connection behind SQLAlchemy's or Django's object; any other object as it is. `vendor` is Django's
    name of the engine.
    """
    if kinds & {"sqlalchemy.Connection", *SESSIONS}:
        if kinds & SESSIONS:
            connection = connection.connection()
        elif not connection.in_transaction():
            connection.exec_driver_sql(
                "SELECT 1"
            )  # its transaction begins, as with any statement; else it never commits
        return connection.connection.driver_connection
    if kinds & DJANGO and connection.vendor == vendor:
        connection.ensure_connection()
        return connection.connection
    return connection


async def in_greenlet(connection: Any, kinds: Set[str], call: Any) -> Any:
    """Run `call` with the synchronous form of SQLAlchemy's asynchronous session or connection."""
    session = connection() if "sqlalchemy.async_scoped_session" in kinds else connection
    return await session.run_sync(call)


def refused(
    connection: object,
    expected: str,
    *,
    asynchronous: bool,
    blocking: Set[str] = frozenset(),
    awaiting: Set[str] = frozenset(),
) -> InvalidJob:
    """Why an object cannot be used. `blocking` and `awaiting` are the kinds that the engine takes in the other form."""
    kinds = kinds_of(connection)
    kind = f"{type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"
    if kinds & _FACTORIES:
        problem = f"a {kind} has no transaction of its own; give the session or connection that has begun one"
    elif asynchronous and kinds & {*SESSIONS, *blocking}:
        problem = f"a {kind} would block the event loop; use Queue with it, or give {expected}"
    elif not asynchronous and kinds & {*ASYNC_SESSIONS, *awaiting}:
        problem = f"a {kind} is asynchronous; use AsyncQueue, or its run_sync if it has one"
    else:
        problem = f"a {kind} is none that can be used here; give {expected}"
    return InvalidJob("connection", problem)
