"""`AsyncQueue`: the methods of `Queue`, awaited. Every call runs in a thread of the queue's own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from supervisor.client import awaited_requests
from supervisor.client.lanes import LISTER, READER, WRITER
from supervisor.client.listener import Listener
from supervisor.client.queue import Queue
from supervisor.domain.errors import WaitTimeout
from supervisor.domain.intake import job_id_of, waiting_limit

if TYPE_CHECKING:
    from typing import Self

    from supervisor.client.job_streams import JobStreams
    from supervisor.domain.job import Job, JobEvent
    from supervisor.domain.job_stream import FollowEvent

_LAST_LOOK = 0.5  # seconds

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


class _Awaited(Generic[Parameters, Answer]):
    """A method of `Queue` as one of `AsyncQueue`, with the same parameters."""

    def __init__(self, method: Callable[Concatenate[Queue, Parameters], Answer], lane: str) -> None:
        self._method = method
        self._lane = lane
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

        async def call(*args: Any, **options: Any) -> Any:
            return await self._call(queue, args, options)

        return functools.update_wrapper(call, self._method.__get__(queue._queue))

    async def _call(self, queue: AsyncQueue, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        connection = options.pop("connection", None)
        if connection is not None:
            method = _in_context(self._method, queue._queue, *args, **options)
            transactional = queue._queue._engine.transactional
            return await transactional.awaited(connection, lambda own: method(connection=own))
        return self._answer(await asyncio.wrap_future(self._begin(queue._queue, args, options)))

    def _begin(self, queue: Queue, args: tuple[Any, ...], options: Mapping[str, Any]) -> Future[Any]:
        return queue._lanes[self._lane].call(_in_context(self._method, queue, *args, **options))

    def _answer(self, found: Any) -> Any:
        return found


class _Inserted(_Awaited[Parameters, Answer]):
    """`put` or `enqueue`: those that wait at the same time share one transaction."""

    def __init__(
        self, method: Callable[Concatenate[Queue, Parameters], Answer], answer: Callable[[tuple[int, bool]], Answer]
    ) -> None:
        super().__init__(method, WRITER)
        self._of_put = answer

    def _begin(self, queue: Queue, args: tuple[Any, ...], options: Mapping[str, Any]) -> Future[Any]:
        return queue._lanes[WRITER].insert(_in_context(queue._new, *args, **options), queue._put_each)

    def _answer(self, found: Any) -> Any:
        return self._of_put(found)


class _Run(_Awaited[Parameters, Answer]):
    """`run`: no thread waits for the job."""

    def __init__(self, method: Callable[Concatenate[Queue, Parameters], Answer]) -> None:
        super().__init__(method, WRITER)

    async def _call(self, queue: AsyncQueue, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        options = {**(self._method.__kwdefaults__ or {}), **options}
        timeout, cancel = options.pop("timeout"), options["cancel"]
        wanted = _in_context(queue._queue._new_request, *args, **options)
        try:
            return await awaited_requests.run(queue, wanted, timeout, cancel)
        except WaitTimeout as late:
            raise late.explained(await queue._why_not_started(late.job_id)) from None


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

    enqueue = _Inserted(Queue.enqueue, lambda answer: answer[0])
    put = _Inserted(Queue.put, lambda answer: answer)
    run = _Run(Queue.run)
    enqueue_many = _Awaited(Queue.enqueue_many, WRITER)
    insert = _Awaited(Queue.insert, WRITER)
    create_tables = _Awaited(Queue.create_tables, WRITER)
    cancel = _Awaited(Queue.cancel, WRITER)
    retry = _Awaited(Queue.retry, WRITER)
    delete = _Awaited(Queue.delete, WRITER)
    pause = _Awaited(Queue.pause, WRITER)
    resume = _Awaited(Queue.resume, WRITER)
    job = _Awaited(Queue.job, READER)
    progress = _Awaited(Queue.progress, READER)
    jobs = _Awaited(Queue.jobs, LISTER)
    count = _Awaited(Queue.count, LISTER)

    async def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until the job has finished, however it ended. `timeout` is seconds.

        Raises WaitTimeout when the time is up (the job continues), JobNotFound for an unknown id. A thousand waiting
        tasks share one thread with one look at the database.
        """
        limit = waiting_limit(timeout)
        deadline = None if limit is None else asyncio.get_running_loop().time() + limit
        while True:
            try:
                async with aclosing(self._events(job_id, deadline)) as events:
                    async for _ in events:
                        pass
            except TimeoutError:
                late = WaitTimeout(job_id, limit or 0.0)
                raise late.explained(await self._why_not_started(job_id)) from None
            job = await self.job(job_id)
            if job.status.finished:  # nobody has retried it in between
                return job

    async def _why_not_started(self, job_id: int) -> str:
        """As in `Queue`. The caller's time is up: nobody waits long for a database that is slow to answer."""
        look = self._queue._lanes[READER].call(functools.partial(self._queue._why_not_started, job_id))
        try:
            async with asyncio.timeout(_LAST_LOOK):
                return await asyncio.wrap_future(look)
        except TimeoutError:
            return ""

    def events(self, job_id: int) -> AsyncGenerator[JobEvent, None]:
        """How the job is now, then each change of its status and progress, and last how it ended.

        For `async for`. Changes that follow each other within some milliseconds may be seen as one. Raises JobNotFound,
        with the first event for an unknown id, and later if the job is deleted.
        """
        return self._events(job_id, None)

    async def _events(self, job_id: int, deadline: float | None) -> AsyncGenerator[JobEvent, None]:
        """Raises TimeoutError after the deadline, in seconds of the loop, but not before the first event."""
        job_id = job_id_of(job_id)
        loop, bell, watcher = asyncio.get_running_loop(), asyncio.Event(), self._queue._watcher
        listener = Listener(job_id, lambda: loop.call_soon_threadsafe(bell.set))
        try:
            watcher.attend(listener)
            while True:
                event = listener.take()
                if event is not None:
                    yield event
                    if event.status.finished:
                        return
                    continue
                async with asyncio.timeout_at(None if listener.event is None else deadline):
                    await bell.wait()
                bell.clear()
        finally:
            watcher.leave(listener)

    def follow(self, job_id: int, timeout: float | None = None) -> AsyncGenerator[FollowEvent, None]:
        """What becomes of the job, and what its handler emits with `ctx.emit`, from the start of the run to the end.

        For `async for`. `timeout` is seconds for all of it. What a run emits can be read on its host, by the user of
        its supervisor; elsewhere, only the states and the progress come, and `elsewhere` of its event "attempt" is
        true. Raises WaitTimeout when the time is up (the job continues), JobNotFound with the first event for an
        unknown id, and later if the job is deleted. All tasks that follow jobs share one look.
        """
        from supervisor.client import following  # imported here: few programs use it

        return following.follow_async(self, job_id, timeout)

    @functools.cached_property
    def _streams(self) -> dict[asyncio.AbstractEventLoop, JobStreams]:
        """What `follow` shares, of each event loop while somebody follows a job there."""
        return {}

    async def close(self) -> None:
        """Wait for the calls that were made, then end the threads and close the connections.

        The queue may be used again; it then opens new ones.
        """
        lanes = self._queue._lanes
        await asyncio.gather(*(asyncio.wrap_future(lanes[name].end()) for name in (READER, LISTER)))
        await asyncio.wrap_future(lanes[WRITER].call(self._queue._disconnect))
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
