"""`Queue`: put jobs into the table from any Python program. Needs only the standard library."""

from __future__ import annotations

import datetime
import os
import threading
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from supervisor.domain.errors import JobNotFound, WaitTimeout
from supervisor.domain.intake import new_job
from supervisor.domain.job import Job, NewJob
from supervisor.engine import open_engine

if TYPE_CHECKING:
    import sqlite3
    from typing import Self

    from supervisor.store.base import Intake


class Queue:
    """The queue of one database, for the programs that fill it.

        queue = Queue("sqlite:///app.db")
        job_id = queue.enqueue("tag", {"path": "cat.jpg"})

    Safe to share between threads, and to use in a child after a fork (which opens a connection of its
    own). The database and its tables are made at first use unless `create` is false. When its file is
    replaced later on, by a backup say, the next use opens the new one; while it is missing, every use raises
    StoreError. `close` it, use it in a `with` statement, or leave that to the garbage collector.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        self._engine = open_engine(url)
        self._create = create
        self._guard = threading.Lock()
        self._intake: tuple[int, Intake] | None = None
        self._abandoned: list[Intake] = []

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
        connection: sqlite3.Connection | None = None,
    ) -> int:
        """Enqueue one job and return its id.

        When it returns, the job survives a power loss. With `connection`, the job is part of the caller's
        transaction instead: it exists if and only if that commits.

        `delay` is "10s" or seconds, `at` an aware datetime or Unix seconds, `priority` −100…100 (higher
        first), `requires` the capabilities a worker must have. A `unique_key` that an unfinished job of
        this type has returns that job's id. Raises InvalidJob (a ValueError), with nothing written, for
        anything out of range; StoreError if the database cannot be used.
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
        requires = requires if isinstance(requires, str) else list(requires)
        jobs = [
            new_job(
                type,
                payload,
                priority=priority,
                delay=delay,
                at=at,
                requires=requires,
                max_attempts=max_attempts,
            )
            for payload in payloads
        ]
        return self.insert(jobs, connection=connection) if jobs else []

    def insert(self, jobs: list[NewJob], *, connection: sqlite3.Connection | None = None) -> list[int]:
        """Insert validated jobs, of any types, in one transaction. Returns their ids in order."""
        with self._guard:
            return self._store().enqueue(jobs, connection=connection)

    def job(self, job_id: int) -> Job:
        """The job as it is now. Raises JobNotFound."""
        with self._guard:
            job = self._store().job(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until the job has finished, however it ended. `timeout` is seconds.

        Raises WaitTimeout when the time is up (the job goes on), JobNotFound for an unknown id.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.0005
        while True:
            with self._guard:
                status = self._store().status(job_id)
            if status is None:
                raise JobNotFound(job_id)
            if status.finished:
                return self.job(job_id)
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(job_id, timeout or 0.0)
            time.sleep(pause)
            pause = min(pause * 1.3, 0.05)

    def close(self) -> None:
        """Close the connection. The queue may be used again; it then opens a new one."""
        with self._guard:
            if self._intake is not None and self._intake[0] == os.getpid():
                self._intake[1].close()
            self._intake = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The attributes are missing where the constructor has refused the URL.
        intake = getattr(self, "_intake", None)
        if intake is not None and intake[0] == os.getpid():
            intake[1].close()

    def _store(self) -> Intake:
        if self._intake is not None and self._intake[0] == os.getpid():
            if not self._intake[1].gone():
                return self._intake[1]
            # A restored backup, say: what is enqueued from now on belongs into the new file.
            # One that was only removed may come back, so none is made in its place.
            self._create = False
            self._intake[1].close()
            self._intake = None
        elif self._intake is not None:
            # Inherited through a fork: closing it here could harm the parent's, so it is only put aside.
            self._abandoned.append(self._intake[1])
        intake = self._engine.intake(create=self._create)
        self._intake = (os.getpid(), intake)
        return intake
