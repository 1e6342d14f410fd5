"""What every engine's producer shares: looking at jobs, requests that wait for one, and transactions of callers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Sequence, Set
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.domain.errors import Conflict, InvalidJob, QueueFull, WriteFailed
from supervisor.domain.job import Job, JobEvent, NewJob, NewJobs
from supervisor.store.moving import MOVED_TO
from supervisor.store.sql.batches import close_batch, open_batch
from supervisor.store.sql.connection import Connection, Queries, RowRefused, Transaction
from supervisor.store.sql.inserting import Put, in_order_of_keys, in_places
from supervisor.store.sql.jobs import event_of, job_of

if TYPE_CHECKING:
    from supervisor.store.sql.stores import Operations

_LOOK_EVERY = 0.5  # seconds

Answer = TypeVar("Answer")


class Producer:
    """Programs enqueue jobs and look at them. Its own commits survive power loss, unless a job need not be durable."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._look_at = time.monotonic() + _LOOK_EVERY

    # What an engine does in its own way

    @property
    def operations(self) -> Operations:
        """On the same connection: it is closed with the producer."""
        raise NotImplementedError

    def make_durable(self) -> None:
        """Whatever has been committed survives power loss. Raises StoreError if that cannot be ensured."""

    def _insert(self, raw: Any, jobs: NewJobs) -> list[int]:
        raise NotImplementedError

    def _put(self, raw: Any, job: NewJob) -> Put:
        raise NotImplementedError

    def _now(self) -> float | None:
        """None: the server's clock decides."""
        return None

    def _before(self) -> None:
        """Before a write."""

    def _wake(self, raw: Any, jobs: Sequence[NewJob]) -> None:
        """Before the commit, after which a job may be done at once: for those who wait for one of these."""

    # Inserting

    def enqueue(self, jobs: NewJobs) -> list[int]:
        """Insert jobs in one transaction and return their ids; a duplicate key returns the existing job's id."""
        self._before()
        with self._connection.write() as raw:
            return self._insert(raw, jobs)

    def put(self, job: NewJob) -> Put:
        """Insert a job, or find one by its key. Returns its id, and whether it is new. Raises QueueFull: see NewJob."""
        self._before()
        with self._connection.syncing(job.durable), self._connection.write() as raw:
            answer = self._requests(raw).put(job)
            self._wake(raw, [job])
            return answer

    def put_each(self, jobs: Sequence[NewJob]) -> list[Put | Exception]:
        """`put` for each of these, in one transaction: the answers or the errors of each.

        If one is refused, or the commit could not be written, each is put by itself. Raises what concerns them all, or
        leaves it unknown whether they were committed.
        """
        try:
            self._before()
            places = in_order_of_keys(jobs)
            with self._connection.syncing(any(job.durable for job in jobs)), self._connection.write() as raw:
                requests = self._requests(raw)
                if any(job.once or job.max_waiting is not None for job in jobs):
                    requests.begin()
                answers = [requests.put_or_full(jobs[place]) for place in places]
                self._wake(raw, jobs)
            return in_places(places, answers)
        except (RowRefused, Conflict, InvalidJob, WriteFailed) as error:
            if self.moved_to():
                raise
            return [error] if len(jobs) == 1 else [self._put_alone(job) for job in jobs]

    def _requests(self, raw: Transaction) -> Requests:
        return Requests(self._connection.queries, raw, lambda job: self._put(raw, job), self._now())

    def _put_alone(self, job: NewJob) -> Put | Exception:
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


class Requests:
    """The jobs with `once` or `max_waiting` of one transaction. `now` is Unix seconds, where the clock is ours.

    A job waits for those that have at least its priority. They are counted once for each type, priority and limit, and
    then by what is inserted.
    """

    def __init__(self, queries: Queries, raw: Transaction, put: Callable[[NewJob], Put], now: float | None) -> None:
        self._queries = queries
        self._raw = raw
        self._insert_or_find = put
        self._now = now
        # The statement after which no other transaction inserts such jobs, if writing alone does not ensure it.
        self._alone = queries.statements.get("one_request_at_a_time")
        self._waiting: dict[tuple[str, int, int], int] = {}

    def put(self, job: NewJob) -> Put:
        """Insert the job, or find one with its key. Raises QueueFull."""
        if not job.once and job.max_waiting is None:
            return self._insert_or_find(job)
        self.begin()
        if (found := self._earlier(job)) is not None:
            return (found, False) if job.once else self._insert_or_find(job)
        if job.max_waiting is not None and self._ahead(job, job.max_waiting) >= job.max_waiting:
            raise QueueFull(job.type, job.max_waiting)
        job_id, new = self._insert_or_find(job)
        if new and job.max_waiting is not None:
            for type, priority, limit in self._waiting:
                if type == job.type and priority <= job.priority:
                    self._waiting[type, priority, limit] += 1
        return job_id, new

    def begin(self) -> None:
        """Before anything else that such a transaction may have to wait for: others wait for its end."""
        if self._alone:
            self._raw.execute(self._alone)
            self._alone = None

    def put_or_full(self, job: NewJob) -> Put | Exception:
        """The same for one of several jobs: that one finds no room concerns no other."""
        try:
            return self.put(job)
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


_SESSIONS = {"sqlalchemy.Session", "sqlalchemy.scoped_session"}
_ASYNC_SESSIONS = {"sqlalchemy.AsyncSession", "sqlalchemy.AsyncConnection", "sqlalchemy.async_scoped_session"}
_DJANGO = {"django.ConnectionProxy", "django.BaseDatabaseWrapper"}
_FACTORIES = {"sqlalchemy.Engine", "sqlalchemy.AsyncEngine", "sqlalchemy.sessionmaker", "sqlalchemy.async_sessionmaker"}


class TransactionalInsert:
    """Enqueueing inside a transaction of the caller's: on its driver's connection, or on what a framework has for it.

    Frameworks are recognised by the names of the object's classes, so that none is imported here. Raises InvalidJob for
    an object that leads to no connection of this engine.
    """

    vendor: str  # as Django calls the engine
    driver: type  # of its connections
    awaited_kinds: Set[str]  # connections of asynchronous drivers
    database: str  # in words, like what it takes
    takes: str
    takes_awaited: str
    queries: Queries

    def prepare(self, connection: Any, *, create: bool) -> bool:
        """Make sure that the caller's connection finds the tables. Returns whether they are committed.

        If there are none and the caller has begun a transaction, they are made inside it. Raises StoreError at once if
        that is impossible: it never waits, since the caller may hold the write lock.
        """
        return self.on_driver(connection, lambda raw: self._prepare(raw, create))

    def insert(self, connection: Any, jobs: NewJobs) -> list[int]:
        """Insert jobs, if and only if the caller's transaction commits. The driver's errors are raised as they are."""
        return self.on_driver(connection, lambda raw: self._insert(raw, jobs))

    def put(self, connection: Any, job: NewJob) -> tuple[int, bool]:
        """The same for one job. Returns its id, and False if that is an existing job with the same unique key."""
        return self.on_driver(connection, lambda raw: self._put(raw, job))

    def job(self, connection: Any, job_id: int) -> Job | None:
        """The job as the caller's transaction sees it."""
        query, which = self.queries.job, {"id": job_id}
        row = self.on_driver(connection, lambda raw: self._plain(raw).execute(query, which).fetchone())
        return None if row is None else job_of(row)

    def open_batch(self, connection: Any, type_: str | None, payload: str) -> int:
        """See `Batches.open`."""
        return self.on_driver(connection, lambda raw: open_batch(self.queries, self._plain(raw), type_, payload))

    def close_batch(self, connection: Any, batch: int) -> None:
        """See `Batches.close`. Raises BatchNotFound."""
        self.on_driver(connection, lambda raw: close_batch(self.queries, self._plain(raw), batch))

    def is_asynchronous(self, connection: Any) -> bool:
        """Whether it is for `awaited`."""
        return bool(kinds_of(connection) & {*self.awaited_kinds, *_ASYNC_SESSIONS})

    async def awaited(self, connection: Any, call: Callable[[object], Answer]) -> Answer:
        """Run `call` with the synchronous form of an asynchronous connection, without blocking the event loop."""
        kinds = kinds_of(connection)
        if kinds & _ASYNC_SESSIONS:
            session = connection() if "sqlalchemy.async_scoped_session" in kinds else connection
            answer: Answer = await session.run_sync(call)
            return answer
        if kinds & self.awaited_kinds:
            return await self._in_thread(connection, call)
        raise self._refused(connection, kinds, asynchronous=True)

    def on_driver(self, connection: Any, work: Callable[[Any], Answer]) -> Answer:
        """Run `work` on the driver's connection behind the caller's object, where that connection may be used."""
        if isinstance(connection, self.driver):
            return work(connection)
        kinds = kinds_of(connection)
        if "peewee.Proxy" in kinds and connection.obj is not None:
            return self.on_driver(connection.obj, work)
        found = _behind(connection, kinds, self.vendor)
        if isinstance(found, self.driver):
            return work(found)
        if found is not connection and kinds_of(found) & self.awaited_kinds:
            return self._inside_run_sync(connection, found, work)
        raise self._refused(connection, kinds, asynchronous=False)

    def _refused(self, connection: object, kinds: Set[str], *, asynchronous: bool) -> InvalidJob:
        kind = f"{type(connection).__module__.partition('.')[0]}.{type(connection).__name__}"
        if kinds & _FACTORIES:
            problem = f"a {kind} has no transaction of its own; give the session or connection that has begun one"
        elif asynchronous and (kinds & _SESSIONS or isinstance(connection, self.driver)):
            problem = f"a {kind} would block the event loop; use Queue with it, or give {self.takes_awaited}"
        elif not asynchronous and kinds & {*_ASYNC_SESSIONS, *self.awaited_kinds}:
            problem = f"a {kind} is asynchronous; use AsyncQueue, or its run_sync if it has one"
        else:
            takes = self.takes_awaited if asynchronous else self.takes
            problem = f"this {kind} is no connection to {self.database}; pass {takes}"
        return InvalidJob("connection", problem)

    # What an engine does in its own way, on its driver's connection

    def _prepare(self, raw: Any, create: bool) -> bool:
        raise NotImplementedError

    def _insert(self, raw: Any, jobs: NewJobs) -> list[int]:
        raise NotImplementedError

    def _put(self, raw: Any, job: NewJob) -> tuple[int, bool]:
        raise NotImplementedError

    def _plain(self, raw: Any) -> Any:
        """What executes statements and has rows as tuples."""
        return raw

    async def _in_thread(self, connection: Any, call: Callable[[Any], Answer]) -> Answer:
        """Run `call` in a thread, with a synchronous form of an asynchronous driver's connection."""
        raise NotImplementedError

    def _inside_run_sync(self, connection: Any, found: Any, work: Callable[[Any], Answer]) -> Answer:
        """Run `work` with a synchronous form of what was found behind SQLAlchemy's object, inside its `run_sync`."""
        raise NotImplementedError


def kinds_of(connection: object) -> set[str]:
    """The classes of an object as `package.Class`, with the outermost package."""
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}


def _behind(connection: Any, kinds: Set[str], vendor: str) -> Any:
    """The driver's connection behind an object of SQLAlchemy's, Django's or peewee's; any other object as it is."""
    if kinds & {"sqlalchemy.Connection", *_SESSIONS}:
        if kinds & _SESSIONS:
            connection = connection.connection()
        elif not connection.in_transaction():
            begin(connection)
        return connection.connection.driver_connection
    if kinds & _DJANGO and connection.vendor == vendor:
        connection.ensure_connection()
        return connection.connection
    return connection.connection() if "peewee.Database" in kinds else connection


def begin(connection: Any) -> None:
    """A transaction of SQLAlchemy's begins with any statement; without one, it never commits."""
    own = connection.connection() if kinds_of(connection) & _SESSIONS else connection
    own.exec_driver_sql("SELECT 1")
