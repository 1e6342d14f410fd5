"""`Queue`: enqueue jobs from any Python program, look at them and wait for them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from supervisor.client.administration import Administration
from supervisor.client.connections import LISTER, READER, WRITER, Connections
from supervisor.client.subscription import Bell, Stream, deadline_after, heard
from supervisor.client.waiting import Caller, at_once
from supervisor.client.watcher import Watcher
from supervisor.domain.enqueueing import CommonOptions, Enqueue, JobOptions, new_job, new_jobs, new_request
from supervisor.domain.job import AlikeJobs, Job, JobEvent, NewJob, NewJobs, Progress
from supervisor.domain.middleware import EnqueueHooks, hooks_of_process, load
from supervisor.domain.values import job_id_of, seconds_of, waiting_limit
from supervisor.engine import open_engine

if TYPE_CHECKING:
    from typing import Self, Unpack

    from supervisor.client.administration import OnDone
    from supervisor.client.lanes import Lane
    from supervisor.domain.job_stream import FollowEvent

_LONGEST_BUSY = 3600.0  # seconds


class Queue(Administration):
    """The queue of one database, for the programs that enqueue jobs.

        queue = Queue("sqlite:///app.db")
        job_id = queue.enqueue("tag", {"path": "cat.jpg"})

    Safe to share between threads, and to use in a child after a fork (which opens connections of its
    own). The database and its tables are created on first use unless `create` is false. When `supervisor restore`
    has replaced its file by a backup, the next use opens the new one; while it is missing, every use raises StoreError.
    Use neither mv nor cp for that while there is a -wal file: SQLite would replay the old log over the new file.
    `middleware` are objects, classes or names "module:attribute" whose `on_enqueue` sees each job first.
    If `url` is that of a pooler before PostgreSQL, `listen_database` names the server itself, for whoever waits.
    `busy_timeout` is how many seconds, up to an hour, a call waits for a transaction of another program that is in its
    way; then it raises StoreBusy, a StoreError.
    `close` it, use it in a `with` statement, or leave that to the garbage collector.
    """

    def __init__(
        self,
        url: str,
        *,
        create: bool = True,
        middleware: Iterable[object] | None = None,
        listen_database: str | None = None,
        busy_timeout: float = 5.0,
    ) -> None:
        patience = seconds_of("busy_timeout", busy_timeout, _LONGEST_BUSY)
        engine = open_engine(url, listen_database)
        self._own_hooks = None if middleware is None else EnqueueHooks(load(middleware))
        self._connections = Connections(engine, create=create, patience=patience)
        self._watcher = Watcher(self._connections)

    def enqueue(
        self, type: str, payload: object = None, *, connection: object = None, **options: Unpack[JobOptions]
    ) -> int:
        """Enqueue one job and return its id.

        When it returns, the job survives a power loss. With `connection`, the job is part of the caller's
        transaction instead: it exists if and only if that commits. It may be a sqlite3.Connection, a
        psycopg.Connection, SQLAlchemy's Session or Connection, Django's connection, or peewee's database.

        `delay` is "10s", a timedelta or seconds, `at` an aware datetime or Unix seconds, `priority` −100…100 (higher
        first), `requires` the capabilities a worker must have. If an unfinished job of this type has the same
        `unique_key`, that job's id is returned; `unique`, `unique_for` and `on_duplicate` change that, and the last may
        have DuplicateJob raised. `meta` is a mapping of your own, at most 16 KiB of JSON: a trace, tags,
        a tenant; it is shown with the job and has no effect. Raises InvalidJob (a ValueError), with nothing
        written, for invalid values; StoreError if the database cannot be used.
        """
        return self.put(type, payload, connection=connection, **options)[0]

    def put(
        self, type: str, payload: object = None, *, connection: object = None, **options: Unpack[JobOptions]
    ) -> tuple[int, bool]:
        """`enqueue` that also says whether the job is new: False if an unfinished one has its `unique_key`.

        Of two programs that put the same key at the same time, exactly one is told True.
        """
        job = self._new(type, payload, **options)
        if connection is not None:
            return self._on(connection).put(connection, job)
        return self._connections.using(self._connections.writer, lambda producer: producer.put(job))

    def run(
        self,
        type: str,
        payload: object = None,
        *,
        timeout: float | None = 10,
        cancel: bool = False,
        idempotency_key: str | None = None,
        max_waiting: int | None = None,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Enqueue one job, wait until it has finished, and return its result.

        `timeout` is seconds. When the time is up, it raises WaitTimeout, which has the id, and the job continues; with
        `cancel` the job is cancelled then, and after any other interruption of the waiting. A key cannot be combined
        with `cancel`: others may wait for the same job by it.
        Raises JobFailed, which has the job, if that ends without a result. Once the job is enqueued, a database that
        cannot be used is waited for; without a timeout, or if the job cannot be made durable, it raises StoreError with
        its `job_id`.

        All calls with the same `idempotency_key`, for the same type and payload, wait for one job, which may have
        finished: after an interruption, the same call gets the result of the first one, as long as the job is kept.
        Raises QueueFull if `max_waiting` jobs of the type with at least this priority are due already. Everything else
        is as for `enqueue`.
        """
        new = functools.partial(
            self._new_request,
            type,
            payload,
            idempotency_key=idempotency_key,
            max_waiting=max_waiting,
            cancel=cancel,
            **options,
        )
        return at_once(lambda: Caller(self).run(new, timeout=timeout, cancel=cancel))

    def progress(self, job_id: int) -> Progress:
        """How far the job is, (fraction, text); a running one's is at most half a second old. Raises JobNotFound."""
        now = next(self.events(job_id))
        return Progress(now.progress, now.text)

    def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until the job has finished, however it ended. `timeout` is seconds.

        Raises WaitTimeout when the time is up (the job continues), JobNotFound for an unknown id.
        """
        return at_once(lambda: Caller(self).wait(job_id, timeout))

    def events(self, job_id: int) -> Iterator[JobEvent]:
        """How the job is now, then each change of its status and progress, and last how it ended.

        Changes that follow each other within some milliseconds may be seen as one. Raises JobNotFound, with the first
        event for an unknown id, and later if the job is deleted.
        """
        yield from Caller(self).states(job_id_of(job_id))

    def follow(self, job_id: int, timeout: float | None = None) -> Iterator[FollowEvent]:
        """What becomes of the job, and what its handler emits with `ctx.emit`, from the start of the run to the end.

        `timeout` is seconds for all of it. What a run emits can be read on its host, by the user of its supervisor;
        elsewhere, only the states and the progress come, and `elsewhere` of its event "attempt" is true. Raises
        WaitTimeout when the time is up (the job continues), JobNotFound with the first event for an unknown id, and
        later if the job is deleted.
        """
        job_id, limit = job_id_of(job_id), waiting_limit(timeout)
        bell = Bell()
        try:
            yield from heard(Stream(self._watcher, job_id, bell.ring), bell, deadline_after(limit))
        except TimeoutError:
            raise at_once(lambda: Caller(self).too_late(job_id, limit)) from None

    def _new(self, *given: Any, **options: Any) -> NewJob:
        """The job of a `put`, as middleware leaves it. Raises InvalidJob."""
        return self._hooked(new_job(*given, **options))

    def _new_request(self, *given: Any, **options: Any) -> NewJob:
        """The same for a `run`."""
        return self._hooked(new_request(*given, **options))

    def _hooked(self, job: NewJob) -> NewJob:
        return hooks.apply(job) if (hooks := self._hooks) else job

    def _put_each(self, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
        """See `Producer.put_each`."""
        return self._connections.using(self._connections.writer, lambda producer: producer.put_each(jobs))

    def enqueue_many(
        self,
        type: str,
        payloads: Iterable[object | Enqueue],
        *,
        connection: object = None,
        **options: Unpack[CommonOptions],
    ) -> list[int]:
        """Enqueue a job for each payload, all in one transaction, and return their ids in order.

        The options, those of `enqueue`, are of all of them. An `Enqueue` among the payloads is one with options of its
        own, such as a `unique_key` or another type.
        """
        if "unique_key" in options:
            raise TypeError("enqueue_many: a unique_key is that of one job; give it in an Enqueue")
        jobs = new_jobs(type, payloads, **options)
        count = jobs.total if isinstance(jobs, AlikeJobs) else len(jobs)
        return self.insert(jobs, connection=connection) if count else []

    def batch(self, *, on_done: OnDone = None, payload: object = None, connection: object = None) -> Batch:
        """Jobs after which one more is enqueued, once: when all that were enqueued in the block have ended, however
        they have.

            with queue.batch(on_done="report", payload={"month": "2027-01"}) as batch:
                for page in pages:
                    batch.enqueue("fetch", {"page": page})

        `on_done` is the type of that job or its task; None: none is enqueued. It has the `payload`, and the batch's id
        as `ctx.meta["batch"]`. A batch without jobs ends with the block. A job that is enqueued with `batch=ctx.batch`
        by one of the batch belongs to it, too.

        If the block raises, or the program is killed in it, what was enqueued runs, and the batch stays open: nothing
        is enqueued when its jobs have ended, until `Queue.batches.close` is called for it. With `connection`, the batch
        and its jobs are part of the caller's transaction, and exist if and only if that commits.
        """
        return Batch(self, on_done, payload, connection)

    def insert(self, jobs: NewJobs, *, connection: object = None) -> list[int]:
        """Insert validated jobs, of any types, in one transaction. Returns their ids in order."""
        if hooks := self._hooks:
            jobs = hooks.applied(jobs)
        if connection is not None:
            return self._on(connection).insert(connection, jobs)
        return self._connections.using(self._connections.writer, lambda producer: producer.enqueue(jobs))

    @functools.cached_property
    def _lanes(self) -> dict[str, Lane]:
        """The threads of `AsyncQueue` and `Task.aenqueue`."""
        from supervisor.client.lanes import Lane

        return {name: Lane(name) for name in (WRITER, READER, LISTER)}

    @property
    def _hooks(self) -> EnqueueHooks | None:
        return hooks_of_process() if self._own_hooks is None else self._own_hooks

    def create_tables(self) -> None:
        """Create the database and its tables now, or upgrade them, instead of on first use."""
        self._engine.database.migrate()

    def close(self) -> None:
        """Close the connections, after the calls that were made. The queue may be used again: it opens new ones."""
        for lane in self.__dict__.get("_lanes", {}).values():
            lane.end().result()
        self._disconnect()

    def _disconnect(self) -> None:
        self._watcher.close()
        self._connections.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *details: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The attributes are missing if the constructor has rejected the URL.
        if "_watcher" in self.__dict__:
            self._watcher.stop()
            self._connections.close(used=False)

    def __reduce__(self) -> tuple[Callable[..., Queue], tuple[str], dict[str, object]]:
        """Pickled as its URL and its middleware, so that a queue can be passed to another process."""
        made = functools.partial(Queue, create=self._connections.create, busy_timeout=self._connections.patience)
        return made, (self.url,), {"_own_hooks": self._own_hooks}


class Batch:
    """A batch while its jobs are enqueued, for a `with` statement: see `Queue.batch`. `id` is known inside it."""

    id: int

    def __init__(self, queue: Queue, on_done: OnDone, payload: object, connection: object) -> None:
        self._queue, self._on_done, self._payload, self._connection = queue, on_done, payload, connection

    def enqueue(self, type: str, payload: object = None, **options: Unpack[JobOptions]) -> int:
        """See `Queue.enqueue`."""
        options["batch"] = self.id
        return self._queue.enqueue(type, payload, connection=self._connection, **options)

    def enqueue_many(
        self, type: str, payloads: Iterable[object | Enqueue], **options: Unpack[CommonOptions]
    ) -> list[int]:
        """See `Queue.enqueue_many`."""
        options["batch"] = self.id
        return self._queue.enqueue_many(type, payloads, connection=self._connection, **options)

    def __enter__(self) -> Self:
        self.id = self._queue.batches.open(self._on_done, self._payload, connection=self._connection)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            self._queue.batches.close(self.id, connection=self._connection)
        elif self._connection is None:
            error.add_note(left_open(self.id))


def left_open(batch: int) -> str:
    """Whose block has ended with an exception."""
    return (
        f"batch {batch} stays open: the jobs that are in it run, and nothing is enqueued when they have ended; "
        f"`supervisor jobs batch {batch} --close` closes it, `supervisor jobs cancel --batch {batch}` cancels them"
    )
