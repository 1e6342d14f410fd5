"""`Queue`: enqueue jobs from any Python program. Needs only the standard library."""

from __future__ import annotations

import contextlib
import datetime
import os
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from supervisor.domain.errors import JobNotFound, WaitTimeout
from supervisor.domain.intake import new_job, payload_arrays
from supervisor.domain.job import AlikeJobs, Job, NewJobs
from supervisor.domain.middleware import EnqueueHooks, hooks_of_process, load
from supervisor.engine import open_engine

if TYPE_CHECKING:
    import sqlite3
    from typing import Self

    from supervisor.store.base import Producer


class Queue:
    """The queue of one database, for the programs that enqueue jobs.

        queue = Queue("sqlite:///app.db")
        job_id = queue.enqueue("tag", {"path": "cat.jpg"})

    Safe to share between threads, and to use in a child after a fork (which opens a connection of its
    own). The database and its tables are created on first use unless `create` is false. When its file is
    replaced later, for example by a backup, the next use opens the new one; while it is missing, every use raises
    StoreError. `middleware` are objects, classes or names "module:attribute" whose `on_enqueue` sees each job first.
    `close` it, use it in a `with` statement, or leave that to the garbage collector.
    """

    def __init__(self, url: str, *, create: bool = True, middleware: Iterable[object] | None = None) -> None:
        self._engine = open_engine(url)
        self._hooks = None if middleware is None else EnqueueHooks(load(middleware))
        self._create = create
        # Two, so that readers never wait for a writer that waits for SQLite's lock.
        self._writer, self._reader = _Seat(), _Seat()
        self._prepared = False  # whether the tables existed when a caller's connection was last used

    @property
    def url(self) -> str:
        """The database's URL, with an absolute path."""
        return self._engine.url

    def enqueue(
        self,
        type: str,
        payload: object = None,
        *,
        priority: int = 0,
        delay: str | float | None = None,
        at: datetime.datetime | float | None = None,
        requires: str | Iterable[str] = (),
        max_attempts: int | None = None,
        unique_key: str | None = None,
        meta: Mapping[str, object] | None = None,
        connection: sqlite3.Connection | None = None,
    ) -> int:
        """Enqueue one job and return its id.

        When it returns, the job survives a power loss. With `connection`, the job is part of the caller's
        transaction instead: it exists if and only if that commits.

        `delay` is "10s" or seconds, `at` an aware datetime or Unix seconds, `priority` −100…100 (higher
        first), `requires` the capabilities a worker must have. If an unfinished job of this type has the same
        `unique_key`, that job's id is returned. `meta` is a mapping of your own, at most 16 KiB of JSON: a trace, tags,
        a tenant; it is shown with the job and has no effect. Raises InvalidJob (a ValueError), with nothing
        written, for invalid values; StoreError if the database cannot be used.
        """
        job = new_job(
            type,
            payload,
            priority=priority,
            delay=delay,
            at=at,
            requires=requires,
            max_attempts=max_attempts,
            unique_key=unique_key,
            meta=meta,
        )
        return self.insert([job], connection=connection)[0]

    def enqueue_many(
        self,
        type: str,
        payloads: Iterable[object],
        *,
        priority: int = 0,
        delay: str | float | None = None,
        at: datetime.datetime | float | None = None,
        requires: str | Iterable[str] = (),
        max_attempts: int | None = None,
        connection: sqlite3.Connection | None = None,
    ) -> list[int]:
        """Enqueue a job for each payload, all in one transaction, and return their ids in order."""
        job = new_job(type, priority=priority, delay=delay, at=at, requires=requires, max_attempts=max_attempts)
        jobs = AlikeJobs(job, *payload_arrays(payloads))
        return self.insert(jobs, connection=connection) if jobs.count else []

    def insert(self, jobs: NewJobs, *, connection: sqlite3.Connection | None = None) -> list[int]:
        """Insert validated jobs, of any types, in one transaction. Returns their ids in order."""
        if hooks := hooks_of_process() if self._hooks is None else self._hooks:
            jobs = hooks.applied(jobs)
        if connection is not None:
            return self._insert_into(connection, jobs)
        with self._writer.guard:
            return self._store(self._writer).enqueue(jobs)

    def _insert_into(self, connection: sqlite3.Connection, jobs: NewJobs) -> list[int]:
        """On the caller's connection, without our guard and without a connection of ours: the caller may hold
        SQLite's write lock, and the holder of the guard may be waiting for that lock.
        """
        if not self._prepared:
            # The tables may have to be created in the caller's transaction, which may not commit: check again then.
            self._prepared = self._engine.transactional.prepare(connection, create=self._create)
        return self._engine.transactional.insert(connection, jobs)

    def create_tables(self) -> None:
        """Create the database and its tables now, or upgrade them, instead of on first use."""
        self._engine.database.migrate()

    def job(self, job_id: int) -> Job:
        """The job as it is now. Raises JobNotFound."""
        with self._reader.guard:
            job = self._store(self._reader).job(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until the job has finished, however it ended. `timeout` is seconds.

        Raises WaitTimeout when the time is up (the job continues), JobNotFound for an unknown id.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.0005
        while True:
            with self._reader.guard:
                status = self._store(self._reader).status(job_id)
            if status is None:
                raise JobNotFound(job_id)
            if status.finished:
                return self.job(job_id)
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(job_id, timeout or 0.0)
            time.sleep(pause)
            pause = min(pause * 1.3, 0.05)

    def close(self) -> None:
        """Close the connections. The queue may be used again; it then opens new ones."""
        for seat in (self._writer, self._reader):
            with seat.guard:
                seat.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The attributes are missing if the constructor has rejected the URL.
        for name in ("_writer", "_reader"):
            seat = getattr(self, name, None)
            if seat is not None:
                seat.clear()

    def __reduce__(self) -> tuple[type[Queue], tuple[str], dict[str, object]]:
        """Pickled as its URL and its middleware, so that a queue can be passed to another process."""
        return Queue, (self.url,), {"_create": self._create, "_hooks": self._hooks}

    def _store(self, seat: _Seat) -> Producer:
        """The seat's producer. The caller holds its guard."""
        if seat.producer is not None:
            if not seat.producer.gone():
                return seat.producer
            # For example a restored backup: new jobs belong in the new file.
            # A file that was only removed may come back, so no new one is created in its place.
            self._create = False
            seat.clear()
        seat.producer = self._engine.producer(create=self._create)
        return seat.producer


class _Seat:
    """One connection, opened on first use, and the guard for the threads that use it in turn."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may fork, or use the queue, while its thread is in the middle of a call.
        self.guard = threading.RLock()
        self.producer: Producer | None = None
        _seats.add(self)

    def clear(self) -> None:
        producer, self.producer = self.producer, None
        if producer is not None:
            producer.close()


# What a fork must not inherit: a guard that another thread holds, and connections that belong to its parent.
_seats: weakref.WeakSet[_Seat] = weakref.WeakSet()
_inherited: list[Producer] = []  # never closed, nor collected: that could harm the parent's
_held: list[threading.RLock] = []
_LONGEST_WAIT = 0.5  # seconds that a fork waits for calls in other threads


def _before_fork() -> None:
    """Keep other threads out of SQLite during the fork: in the child, its locks would stay locked forever."""
    deadline = time.monotonic() + _LONGEST_WAIT
    _held.extend(
        seat.guard for seat in list(_seats) if seat.guard.acquire(timeout=max(0.0, deadline - time.monotonic()))
    )


def _after_fork_in_parent() -> None:
    try:
        _release()
    except BaseException:  # from a signal handler, such as Ctrl-C: Python drops it here; the guards must be released
        _release()
        raise


def _release() -> None:
    while _held:
        with contextlib.suppress(RuntimeError):  # it was released before the exception came
            _held[-1].release()
        _held.pop()


def _after_fork_in_child() -> None:
    _held.clear()
    for seat in list(_seats):
        seat.guard = threading.RLock()
        if seat.producer is not None:
            _inherited.append(seat.producer)
            seat.producer = None


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
