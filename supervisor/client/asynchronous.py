"""`AsyncQueue`: the methods of `Queue`, awaited. Every call runs in a thread of the queue's own."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from contextlib import aclosing
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from supervisor.client.connections import forgetful
from supervisor.client.queue import Queue
from supervisor.client.watcher import Listener
from supervisor.domain.errors import WaitTimeout

if TYPE_CHECKING:
    from typing import Self

    from supervisor.domain.job import Job, JobEvent

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")


class _Lane:
    """A thread that runs the calls of one connection, one after the other. It is started for the first one."""

    def __init__(self, name: str) -> None:
        self._name = f"supervisor_{name}"
        forgetful.add(self)
        self.forget()

    def forget(self) -> None:
        """Implements `connections.Forgetful`."""
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any] | None]] = SimpleQueue()
        self._runs = False

    def call(self, work: Callable[[], Answer]) -> Future[Answer]:
        """Its result; a call that is cancelled before it begins is not made."""
        future: Future[Answer] = Future()
        with self._lock:
            if not self._runs:
                # Daemonic: a program may end while another one holds the write lock.
                threading.Thread(target=_serve, args=(self._calls,), name=self._name, daemon=True).start()
                self._runs = True
            self._calls.put((future, work))
        return future

    def end(self) -> Future[None]:
        """Done when all calls are made and the thread ends. The next call starts another."""
        future: Future[None] = Future()
        with self._lock:
            if self._runs:
                self._runs = False
                self._calls.put((future, None))
                self._calls = SimpleQueue()
            else:
                future.set_result(None)
        return future

    def __del__(self) -> None:
        self.end()


def _serve(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any] | None]]) -> None:
    while True:
        future, work = calls.get()
        if work is None:
            future.set_result(None)
            return
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)
        del future, work  # with what they hold, before the next one is waited for


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

        async def call(*args: Any, connection: object = None, **options: Any) -> Answer:
            # Middleware may look for the caller's trace in the context.
            method = functools.partial(contextvars.copy_context().run, self._method, queue._queue, *args, **options)
            if connection is not None:
                transactional = queue._queue._engine.transactional
                return await transactional.awaited(connection, lambda own: method(connection=own))
            return await asyncio.wrap_future(queue._lanes[self._lane].call(method))

        return functools.update_wrapper(call, self._method.__get__(queue._queue))


_WRITER, _READER, _LISTER = "writer", "reader", "lister"  # as the connections of a queue


def _lanes() -> dict[str, _Lane]:
    return {name: _Lane(name) for name in (_WRITER, _READER, _LISTER)}


class AsyncQueue:
    """`Queue` for programs with an event loop, which it never blocks: not even while another program holds the write
    lock for seconds.

        async with AsyncQueue("sqlite:///app.db") as queue:
            job_id = await queue.enqueue("tag", {"path": "cat.jpg"})

    The methods have the parameters and raise the errors of those of `Queue`. Calls that write are made one after the
    other, in the order of their awaits. If the task that awaits a call is cancelled, a call that has not begun is not
    made; one that has begun is completed, unseen: whether a job was enqueued is then unknown, and a `unique_key` makes
    trying again safe.

    It may be used by several event loops, also at the same time, and in a child after a fork. `close` it, or use it in
    an `async with` statement. `connection` may be an aiosqlite.Connection, or SQLAlchemy's AsyncSession or
    AsyncConnection.
    """

    def __init__(self, url: str, *, create: bool = True, middleware: Iterable[object] | None = None) -> None:
        self._queue = Queue(url, create=create, middleware=middleware)
        self._lanes = _lanes()

    @property
    def url(self) -> str:
        """The database's URL, with an absolute path."""
        return self._queue.url

    enqueue = _Awaited(Queue.enqueue, _WRITER)
    put = _Awaited(Queue.put, _WRITER)
    enqueue_many = _Awaited(Queue.enqueue_many, _WRITER)
    insert = _Awaited(Queue.insert, _WRITER)
    create_tables = _Awaited(Queue.create_tables, _WRITER)
    cancel = _Awaited(Queue.cancel, _WRITER)
    retry = _Awaited(Queue.retry, _WRITER)
    delete = _Awaited(Queue.delete, _WRITER)
    pause = _Awaited(Queue.pause, _WRITER)
    resume = _Awaited(Queue.resume, _WRITER)
    job = _Awaited(Queue.job, _READER)
    progress = _Awaited(Queue.progress, _READER)
    jobs = _Awaited(Queue.jobs, _LISTER)
    count = _Awaited(Queue.count, _LISTER)

    async def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """Wait until the job has finished, however it ended. `timeout` is seconds.

        Raises WaitTimeout when the time is up (the job continues), JobNotFound for an unknown id. A thousand waiting
        tasks share one thread with one look at the database.
        """
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while True:
            try:
                async with aclosing(self._events(job_id, deadline)) as events:
                    async for _ in events:
                        pass
            except TimeoutError:
                raise WaitTimeout(job_id, timeout or 0.0) from None
            job = await self.job(job_id)
            if job.status.finished:  # nobody has retried it in between
                return job

    def events(self, job_id: int) -> AsyncGenerator[JobEvent, None]:
        """How the job is now, then each change of its status and progress, and last how it ended.

        For `async for`. Changes that follow each other within some milliseconds may be seen as one. Raises JobNotFound,
        with the first event for an unknown id, and later if the job is deleted.
        """
        return self._events(job_id, None)

    async def _events(self, job_id: int, deadline: float | None) -> AsyncGenerator[JobEvent, None]:
        """Raises TimeoutError after the deadline, in seconds of the loop, but not before the first event."""
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

    async def close(self) -> None:
        """Wait for the calls that were made, then end the threads and close the connections.

        The queue may be used again; it then opens new ones.
        """
        await asyncio.gather(*(asyncio.wrap_future(self._lanes[name].end()) for name in (_READER, _LISTER)))
        await asyncio.wrap_future(self._lanes[_WRITER].call(self._queue.close))
        await asyncio.wrap_future(self._lanes[_WRITER].end())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    def __getstate__(self) -> Queue:
        """Pickled as its `Queue`, so that it can be passed to another process."""
        return self._queue

    def __setstate__(self, queue: Queue) -> None:
        self._queue = queue
        self._lanes = _lanes()
