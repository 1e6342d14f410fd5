"""`AsyncQueue`: the methods of `Queue`, awaited. Every call runs in a thread of the queue's own.

The functions that make up its `run` are also for the admin process.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from supervisor.client.lanes import LISTER, READER, WRITER, Put, PutEach
from supervisor.client.queue import AGAIN, Queue, naming, result_of
from supervisor.client.subscription import Subscription, rung
from supervisor.domain.errors import JobFailed, StoreError, WaitTimeout
from supervisor.domain.intake import job_id_of, require_same, waiting_limit
from supervisor.domain.job import JobEvent, NewJob, Status

if TYPE_CHECKING:
    from typing import Self

    from supervisor.domain.job import Job
    from supervisor.domain.job_stream import FollowEvent

_LAST_LOOK = 0.5  # seconds

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Inserted = Callable[[list[NewJob]], object]
"""Called with the jobs that a commit has inserted, in the thread of those that write. It must not raise."""


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
        return await _run(queue, wanted, timeout, cancel)


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
                await self._end(job_id, deadline)
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
        return self._events(job_id_of(job_id))

    async def _events(
        self, job_id: int, deadline: float | None = None, *, only_end: bool = False, just_made: bool = False
    ) -> AsyncGenerator[JobEvent, None]:
        """Raises TimeoutError after the deadline, in seconds of the loop, but not before the first event."""
        loop, bell, watcher = asyncio.get_running_loop(), asyncio.Event(), self._queue._watcher
        ring = functools.partial(loop.call_soon_threadsafe, bell.set)
        wanted = Subscription(job_id, ring, only_end=only_end, just_made=just_made)
        try:
            while True:
                bell.clear()
                watcher.subscribe(wanted)
                if (event := wanted.take()) is not None:
                    yield event
                    if event.status.finished:
                        return
                    continue
                until = deadline if just_made or wanted.event is not None else None
                if until is not None and loop.time() >= until:
                    raise TimeoutError
                await rung(bell, until)
        finally:
            watcher.leave(wanted)

    async def _end(self, job_id: int, deadline: float | None = None, *, just_made: bool = False) -> JobEvent:
        """How it ends. Of one that was `just_made`, nothing is asked before."""
        found = [event async for event in self._events(job_id_of(job_id), deadline, only_end=True, just_made=just_made)]
        return found[-1]

    def follow(self, job_id: int, timeout: float | None = None) -> AsyncGenerator[FollowEvent, None]:
        """What becomes of the job, and what its handler emits with `ctx.emit`, from the start of the run to the end.

        For `async for`. `timeout` is seconds for all of it. What a run emits can be read on its host, by the user of
        its supervisor; elsewhere, only the states and the progress come, and `elsewhere` of its event "attempt" is
        true. Raises WaitTimeout when the time is up (the job continues), JobNotFound with the first event for an
        unknown id, and later if the job is deleted. All tasks that follow jobs share one look.
        """
        from supervisor.client import following  # imported here: few programs use it

        return following.follow_async(self._queue._watcher, job_id, timeout, self._why_not_started)

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


async def _run(queue: AsyncQueue, wanted: Callable[[], NewJob], timeout: float | None, cancel: bool) -> Any:
    limit = waiting_limit(timeout)
    deadline = None if limit is None else asyncio.get_running_loop().time() + limit
    job_id, new = await enqueue(queue, wanted, cancel=cancel)
    with naming(job_id):
        try:
            return await result_of_job(queue, job_id, deadline, new=new)
        except TimeoutError:
            if cancel:
                await cancel_job(queue, job_id)
            await make_durable(queue)
            late = WaitTimeout(job_id, limit or 0.0)
            raise late.explained(await queue._why_not_started(job_id)) from None
        except JobFailed:
            await make_durable(queue)
            raise
        except BaseException:  # also whatever a signal handler raises
            if cancel:
                _cancel_later(queue._queue, job_id)
            raise


async def enqueue(
    queue: AsyncQueue, wanted: Callable[[], NewJob], *, cancel: bool = False, inserted: Inserted | None = None
) -> Put:
    """`put` for the job that `wanted` returns, in the thread of those that write. If the task that awaits it is
    cancelled, so is its job, with `cancel`.
    """
    made: list[NewJob] = []

    def new_job() -> NewJob:
        made.append(wanted())
        return made[0]

    writer = queue._queue._lanes[WRITER]
    put_each = queue._queue._put_each
    begun = writer.insert(new_job, put_each if inserted is None else functools.partial(_put_each, put_each, inserted))
    try:
        job_id, new = await asyncio.wrap_future(begun)
    except asyncio.CancelledError:
        if cancel:
            writer.call(functools.partial(_cancel_what_it_made, queue._queue, begun))  # its turn comes after the insert
        raise
    if not new and made[0].once:
        with naming(job_id):
            require_same(await queue.job(job_id), made[0])
    return job_id, new


def _put_each(put_each: PutEach, inserted: Inserted, jobs: list[NewJob]) -> list[Put | Exception]:
    answers = put_each(jobs)
    inserted([job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, tuple) and answer[1]])
    return answers


async def patiently(look: Callable[[], Awaitable[Answer]], deadline: float | None) -> Answer:
    """What a look finds. One that fails is made again until the deadline, in seconds of the loop, and then raises
    TimeoutError; without a deadline it raises StoreError.
    """
    while True:
        try:
            return await look()
        except StoreError:
            if deadline is None:
                raise
        async with asyncio.timeout_at(deadline):
            await asyncio.sleep(AGAIN)


async def result_of_job(queue: AsyncQueue, job_id: int, deadline: float | None, *, new: bool = False) -> Any:
    """Raises JobFailed if it ends without a result; TimeoutError after the deadline, in seconds of the loop. A database
    that cannot be used tells nothing about the job: it is waited for; without a deadline, raises StoreError.
    """
    while True:
        event = await patiently(functools.partial(queue._end, job_id, deadline, just_made=new), deadline)
        if event.status is Status.DONE:
            return event.result
        job = await patiently(lambda: queue.job(job_id), deadline)
        if job.status.finished:  # nobody has retried it in between
            return result_of(job)
        new = False


async def cancel_job(queue: AsyncQueue, job_id: int) -> None:
    """Unless it has just ended; also if the task that awaits this is cancelled."""
    try:
        await asyncio.wrap_future(_cancel_later(queue._queue, job_id))
    except asyncio.CancelledError:
        _cancel_later(queue._queue, job_id)  # the call that was awaited is not made if it had not begun
        raise


async def make_durable(queue: AsyncQueue) -> None:
    """Before somebody is told the id of a job that has no result yet. Raises StoreError."""
    lane = queue._queue._lanes[WRITER]
    await asyncio.wrap_future(lane.call(queue._queue._make_durable))


def _cancel_later(queue: Queue, job_id: int) -> Future[None]:
    return queue._lanes[WRITER].call(functools.partial(queue._give_up, job_id))


def _cancel_what_it_made(queue: Queue, begun: Future[Put]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        queue._give_up(begun.result()[0])
