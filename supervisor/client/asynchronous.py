"""`AsyncQueue`: the methods of `Queue`, awaited. Every call runs in a thread of the queue's own."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from supervisor.client.administration import Batches, Schedules
from supervisor.client.connections import LISTER, READER, WRITER, Put
from supervisor.client.queue import Queue, left_open
from supervisor.client.subscription import LONGEST_WAIT, Stream, Subscription, deadline_after
from supervisor.client.waiting import Caller
from supervisor.domain.job import JobEvent, NewJob
from supervisor.domain.values import job_id_of, waiting_limit

if TYPE_CHECKING:
    from typing import Self, Unpack

    from supervisor.client.administration import OnDone
    from supervisor.domain.enqueueing import CommonOptions, Enqueue, JobOptions
    from supervisor.domain.job_stream import FollowEvent

Parameters = ParamSpec("Parameters")
Answer = TypeVar("Answer")
Part = TypeVar("Part")
Call = Callable[..., Coroutine[Any, Any, Any]]

_LAST_LOOK = 0.5  # seconds


class LoopBell:
    """`Bell` on an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """In any thread. Raises RuntimeError if the loop was closed."""
        self._loop.call_soon_threadsafe(self._rung.set)

    async def wait(self, until: float | None = None) -> None:
        """Until it rings or that time, in monotonic seconds; at most a second."""
        left = LONGEST_WAIT if until is None else min(LONGEST_WAIT, until - time.monotonic())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await self._rung.wait()
        self._rung.clear()


async def heard(wanted: Subscription, bell: LoopBell, deadline: float | None) -> AsyncGenerator[Any, None]:
    """`subscription.heard` on an event loop."""
    try:
        while True:
            for one in wanted.news():
                yield one
            if wanted.ended:
                return
            await bell.wait(wanted.next_look(deadline))
    finally:
        wanted.leave()


class InTask(Caller):
    """A task of an event loop. What uses a connection has its turn in the thread of that; no thread waits for a job:
    all wait for the queue's watcher.

    `inserted` is called with the jobs that a commit has inserted, in the thread of those that write. It must not raise.
    """

    _queue: Queue

    def __init__(self, queue: Queue, inserted: Callable[[list[NewJob]], object] = lambda jobs: None) -> None:
        super().__init__(queue)
        self._inserted = inserted

    async def call(self, lane: str, work: Callable[[], Answer]) -> Answer:
        """It is not called if the task is cancelled before its turn."""
        return await asyncio.wrap_future(self._queue._lanes[lane].call(work))

    async def put(self, wanted: Callable[[], NewJob], *, cancel: bool = False) -> tuple[NewJob, Put]:
        made: list[NewJob] = []

        def new_job() -> NewJob:
            made.append(wanted())
            return made[0]

        begun = self._queue._lanes[WRITER].insert(new_job, self._put_each)
        try:
            answer = await asyncio.wrap_future(begun)
            return made[0], answer
        except asyncio.CancelledError:
            if cancel:  # its turn comes after the insert
                self._queue._lanes[WRITER].call(functools.partial(self._cancel_what_it_made, begun))
            raise

    def _put_each(self, jobs: list[NewJob]) -> list[Put | Exception]:
        answers = self._queue._put_each(jobs)
        self._inserted(
            [job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, tuple) and answer[1]]
        )
        return answers

    def _cancel_what_it_made(self, begun: Future[Put]) -> None:
        if not begun.cancelled() and begun.exception() is None:
            super().give_up(begun.result()[0])

    async def end(self, job_id: int, deadline: float | None, *, just_made: bool = False) -> JobEvent:
        bell = LoopBell()
        wanted = Subscription(self._queue._watcher, job_id, bell.ring, only_end=True, just_made=just_made)
        event: JobEvent = [event async for event in heard(wanted, bell, deadline)][-1]
        return event

    async def why_not_started(self, job_id: int) -> str:
        """The database may be slow to answer: nobody waits long for that."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_LOOK):
                return await self.call(READER, functools.partial(self._queue._why_not_started, job_id))
        return ""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def give_up(self, job_id: int) -> None:
        """Soon: also if the task is cancelled."""
        self._queue._lanes[WRITER].call(functools.partial(super().give_up, job_id))


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
    def __get__(self, queue: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(
        self, queue: AsyncQueue | AsyncSchedules | AsyncBatches, owner: type[Any] | None = None
    ) -> Callable[Parameters, Coroutine[Any, Any, Answer]]: ...
    def __get__(self, queue: AsyncQueue | AsyncSchedules | AsyncBatches | None, owner: type[Any] | None = None) -> Any:
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
        return await InTask(queue).call(self._lane, _in_context(self._method, queue, *args, **options))


async def _put(queue: Queue, /, *args: Any, **options: Any) -> tuple[int, bool]:
    """Those that wait at the same time share one transaction."""
    return await InTask(queue).insert(_in_context(queue._new, *args, **options))


async def _enqueue(queue: Queue, /, *args: Any, **options: Any) -> int:
    return (await _put(queue, *args, **options))[0]


async def _run(queue: Queue, /, *args: Any, **options: Any) -> Any:
    options = {**(Queue.run.__kwdefaults__ or {}), **options}
    timeout = options.pop("timeout")
    wanted = _in_context(queue._new_request, *args, **options)
    return await InTask(queue).run(wanted, timeout=timeout, cancel=options["cancel"])


async def _wait(queue: Queue, /, *args: Any, **options: Any) -> Any:
    return await InTask(queue).wait(*args, **options)


def _in_context(function: Callable[..., Answer], *args: Any, **options: Any) -> Callable[..., Answer]:
    """To be called in another thread: middleware may look for the caller's trace in the context."""
    return functools.partial(contextvars.copy_context().run, function, *args, **options)


def _of(
    part: Callable[[Queue], Part], method: Callable[Concatenate[Part, Parameters], Answer]
) -> Callable[Concatenate[Queue, Parameters], Answer]:
    """A method of a part of the queue as one of the queue."""

    @functools.wraps(method)
    def call(queue: Queue, /, *args: Parameters.args, **options: Parameters.kwargs) -> Answer:
        return method(part(queue), *args, **options)

    return call


class AsyncSchedules:
    """The methods of `Queue.schedules`, awaited."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    set = _Awaited(_of(Schedules, Schedules.set))
    remove = _Awaited(_of(Schedules, Schedules.remove))
    list = _Awaited(_of(Schedules, Schedules.list), LISTER)


class AsyncBatches:
    """The methods of `Queue.batches`, awaited."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    open = _Awaited(_of(Batches, Batches.open))
    close = _Awaited(_of(Batches, Batches.close))
    get = _Awaited(_of(Batches, Batches.get), LISTER)
    unfinished = _Awaited(_of(Batches, Batches.unfinished), LISTER)


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

    @property
    def schedules(self) -> AsyncSchedules:
        """See `Queue.schedules`."""
        return AsyncSchedules(self._queue)

    @property
    def batches(self) -> AsyncBatches:
        """See `Queue.batches`."""
        return AsyncBatches(self._queue)

    def batch(self, *, on_done: OnDone = None, payload: object = None, connection: object = None) -> AsyncBatch:
        """See `Queue.batch`; this is for `async with`, and its methods are awaited."""
        return AsyncBatch(self, on_done, payload, connection)

    enqueue = _Awaited(Queue.enqueue, call=_enqueue)
    put = _Awaited(Queue.put, call=_put)
    run = _Awaited(Queue.run, call=_run)
    wait = _Awaited(Queue.wait, call=_wait)
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
    why = _Awaited(Queue.why, LISTER)
    jobs = _Awaited(Queue.jobs, LISTER)
    count = _Awaited(Queue.count, LISTER)

    def events(self, job_id: int) -> AsyncGenerator[JobEvent, None]:
        """How the job is now, then each change of its status and progress, and last how it ended.

        See `Queue.events`; this is for `async for`.
        """
        bell = LoopBell()
        return heard(Subscription(self._queue._watcher, job_id_of(job_id), bell.ring), bell, None)

    def follow(self, job_id: int, timeout: float | None = None) -> AsyncGenerator[FollowEvent, None]:
        """What becomes of the job, and what its handler emits with `ctx.emit`, from the start of the run to the end.

        See `Queue.follow`; this is for `async for`. All tasks that follow jobs share one look.
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
            raise await InTask(self._queue).too_late(job_id, limit) from None

    async def close(self) -> None:
        """Wait for the calls that were made, then end the threads and close the connections.

        The queue may be used again; it then opens new ones.
        """
        lanes = self._queue._lanes
        await asyncio.gather(*(asyncio.wrap_future(lanes[name].end()) for name in (READER, LISTER)))
        await InTask(self._queue).call(WRITER, self._queue._disconnect)
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


class AsyncBatch:
    """`Batch` for an `async with` statement: see `AsyncQueue.batch`."""

    id: int

    def __init__(self, queue: AsyncQueue, on_done: OnDone, payload: object, connection: object) -> None:
        self._queue, self._on_done, self._payload, self._connection = queue, on_done, payload, connection

    async def enqueue(self, type: str, payload: object = None, **options: Unpack[JobOptions]) -> int:
        """See `Queue.enqueue`."""
        options["batch"] = self.id
        return await self._queue.enqueue(type, payload, connection=self._connection, **options)

    async def enqueue_many(
        self, type: str, payloads: Iterable[object | Enqueue], **options: Unpack[CommonOptions]
    ) -> list[int]:
        """See `Queue.enqueue_many`."""
        options["batch"] = self.id
        return await self._queue.enqueue_many(type, payloads, connection=self._connection, **options)

    async def __aenter__(self) -> Self:
        self.id = await self._queue.batches.open(self._on_done, self._payload, connection=self._connection)
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            await self._queue.batches.close(self.id, connection=self._connection)
        elif self._connection is None:
            error.add_note(left_open(self.id))
