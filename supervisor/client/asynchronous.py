"""`AsyncQueue`: the methods of `Queue`, awaited. Every call runs in a thread of the queue's own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from supervisor.client.awaiting import LoopBell, called, end_of, heard, insert, job_of, run, too_late
from supervisor.client.lanes import LISTER, READER, WRITER
from supervisor.client.queue import Queue
from supervisor.client.subscription import Stream, Subscription, deadline_after
from supervisor.domain.intake import job_id_of, waiting_limit
from supervisor.domain.job import JobEvent

if TYPE_CHECKING:
    from typing import Self

    from supervisor.domain.job import Job
    from supervisor.domain.job_stream import FollowEvent

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Call = Callable[..., Coroutine[Any, Any, Any]]


class _Awaited(Generic[Parameters, Answer]):
    """A method of `Queue` as one of `AsyncQueue`, with the same parameters: called in a lane, or as `call` does it,
    which takes the queue.
    """

    def __init__(
        self, method: Callable[Concatenate[Queue, Parameters], Answer], lane: str = WRITER, call: Call | None = None
    ) -> None:
        self._method = method
        self._lane = lane
        self._other_call = call
        self.__doc__ = method.__doc__

    @overload
    def __get__(self, queue: None, owner: type[AsyncQueue]) -> Self: ...
    @overload
    def __get__(
        self, queue: AsyncQueue, owner: type[AsyncQueue] | None = None
    ) -> Callable[Parameters, Coroutine[Any, Any, Answer]]: ...
    def __get__(self, queue: AsyncQueue | None, owner: type[AsyncQueue] | None = None) -> Any:
        if queue is None:
            return self
        return functools.update_wrapper(functools.partial(self._call, queue._queue), self._method.__get__(queue._queue))

    async def _call(self, queue: Queue, /, *args: Any, **options: Any) -> Any:
        connection = options.pop("connection", None)
        if connection is not None:
            method = _in_context(self._method, queue, *args, **options)
            return await queue._engine.transactional.awaited(connection, lambda own: method(connection=own))
        if self._other_call is not None:
            return await self._other_call(queue, *args, **options)
        return await called(queue, self._lane, _in_context(self._method, queue, *args, **options))


async def _put(queue: Queue, /, *args: Any, **options: Any) -> tuple[int, bool]:
    """Those that wait at the same time share one transaction."""
    return await insert(queue, _in_context(queue._new, *args, **options))


async def _enqueue(queue: Queue, /, *args: Any, **options: Any) -> int:
    return (await _put(queue, *args, **options))[0]


async def _run(queue: Queue, /, *args: Any, **options: Any) -> Any:
    options = {**(Queue.run.__kwdefaults__ or {}), **options}
    timeout, cancel = options.pop("timeout"), options["cancel"]
    wanted = _in_context(queue._new_request, *args, **options)
    return await run(queue, wanted, waiting_limit(timeout), cancel=cancel)


def _in_context(function: Callable[..., Answer], *args: Any, **options: Any) -> Callable[..., Answer]:
    """To be called in another thread: middleware may look for the caller's trace in the context."""
    return functools.partial(contextvars.copy_context().run, function, *args, **options)


class AsyncQueue:
    """`Queue` for programs with an event loop, which it never blocks: not even while another program holds the write
    lock for seconds.

        async with AsyncQueue("sqlite:///app.db") as queue:
            job_id = await queue.enqueue("tag", {"path": "cat.jpg"})

    The methods have the parameters and raise the errors of those of `Queue`. Calls that write are made one after the
    other, in the order of their awaits; jobs that are enqueued meanwhile share one transaction. If the task that awaits
    a call is cancelled, a call that has not begun is not made; one that has begun is completed, unseen: whether a job
    was enqueued is then unknown, and a `unique_key` makes trying again safe. With `connection`, nothing is sent on it
    after a cancellation, so that rolling back leaves no job.

    It may be used by several event loops, also at the same time, and in a child after a fork. `close` it, or use it in
    an `async with` statement. `connection` may be an aiosqlite.Connection, a psycopg.AsyncConnection, asyncpg's
    connection, or SQLAlchemy's AsyncSession or AsyncConnection.
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
        self._queue = Queue(
            url, create=create, middleware=middleware, listen_database=listen_database, busy_timeout=busy_timeout
        )

    @classmethod
    def of(cls, queue: Queue) -> AsyncQueue:
        """This queue for an event loop. Closing either closes both."""
        if not isinstance(queue, Queue):
            raise TypeError(f"AsyncQueue.of takes a Queue, not {queue!r}")
        found = cls.__new__(cls)
        found._queue = queue
        return found

    @property
    def url(self) -> str:
        """The database's URL, with an absolute path."""
        return self._queue.url

    enqueue = _Awaited(Queue.enqueue, call=_enqueue)
    put = _Awaited(Queue.put, call=_put)
    run = _Awaited(Queue.run, call=_run)
    enqueue_many = _Awaited(Queue.enqueue_many)
    insert = _Awaited(Queue.insert)
    create_tables = _Awaited(Queue.create_tables)
    cancel = _Awaited(Queue.cancel)
    retry = _Awaited(Queue.retry)
    delete = _Awaited(Queue.delete)
    pause = _Awaited(Queue.pause)
    resume = _Awaited(Queue.resume)
    job = _Awaited(Queue.job, READER)
    progress = _Awaited(Queue.progress, READER)
    jobs = _Awaited(Queue.jobs, LISTER)
    count = _Awaited(Queue.count, LISTER)

    async def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until the job has finished, however it ended. `timeout` is seconds.

        Raises WaitTimeout when the time is up (the job continues), JobNotFound for an unknown id. A thousand waiting
        tasks share one thread with one look at the database.
        """
        job_id, limit = job_id_of(job_id), waiting_limit(timeout)
        deadline = deadline_after(limit)
        while True:
            try:
                await end_of(self._queue, job_id, deadline)
            except TimeoutError:
                raise await too_late(self._queue, job_id, limit) from None
            job = await job_of(self._queue, job_id)
            if job.status.finished:  # nobody has retried it in between
                return job

    def events(self, job_id: int) -> AsyncGenerator[JobEvent, None]:
        """How the job is now, then each change of its status and progress, and last how it ended.

        For `async for`. Changes that follow each other within some milliseconds may be seen as one. Raises JobNotFound,
        with the first event for an unknown id, and later if the job is deleted.
        """
        return self._events(job_id_of(job_id))

    async def _events(self, job_id: int) -> AsyncGenerator[JobEvent, None]:
        bell = LoopBell()
        wanted = Subscription(self._queue._watcher, job_id, bell.ring)
        async with contextlib.aclosing(heard(wanted, bell, None)) as events:
            async for event in events:
                yield event

    def follow(self, job_id: int, timeout: float | None = None) -> AsyncGenerator[FollowEvent, None]:
        """What becomes of the job, and what its handler emits with `ctx.emit`, from the start of the run to the end.

        For `async for`. `timeout` is seconds for all of it. What a run emits can be read on its host, by the user of
        its supervisor; elsewhere, only the states and the progress come, and `elsewhere` of its event "attempt" is
        true. Raises WaitTimeout when the time is up (the job continues), JobNotFound with the first event for an
        unknown id, and later if the job is deleted. All tasks that follow jobs share one look.
        """
        return self._follow(job_id_of(job_id), waiting_limit(timeout))

    async def _follow(self, job_id: int, limit: float | None) -> AsyncGenerator[FollowEvent, None]:
        bell = LoopBell()
        stream = Stream(self._queue._watcher, job_id, bell.ring)
        try:
            async with contextlib.aclosing(heard(stream, bell, deadline_after(limit))) as events:
                async for event in events:
                    yield event
        except TimeoutError:
            raise await too_late(self._queue, job_id, limit) from None

    async def close(self) -> None:
        """Wait for the calls that were made, then end the threads and close the connections.

        The queue may be used again; it then opens new ones.
        """
        lanes = self._queue._lanes
        await asyncio.gather(*(asyncio.wrap_future(lanes[name].end()) for name in (READER, LISTER)))
        await called(self._queue, WRITER, self._queue._disconnect)
        await asyncio.wrap_future(lanes[WRITER].end())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    def __getstate__(self) -> Queue:
        """Pickled as its `Queue`, so that it can be passed to another process."""
        return self._queue

    def __setstate__(self, queue: Queue) -> None:
        self._queue = queue
