"""What becomes of jobs, awaited on an event loop: their states, their ends, and the results of those just made.

No thread waits for a job: all wait for the queue's watcher. What writes has its turn in the thread of those that write.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from supervisor.client.lanes import READER, WRITER, Put, PutEach
from supervisor.client.queue import AGAIN, Queue, naming, result_of
from supervisor.client.subscription import LONGEST_WAIT, Listener, News, Subscription, deadline_after
from supervisor.domain.errors import JobFailed, StoreError, WaitTimeout
from supervisor.domain.intake import require_same
from supervisor.domain.job import Job, JobEvent, NewJob, Status

_LAST_LOOK = 0.5  # seconds

Answer = TypeVar("Answer")
Inserted = Callable[[list[NewJob]], object]
"""Called with the jobs that a commit has inserted, in the thread of those that write. It must not raise."""


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


async def heard(listener: Listener[News], bell: LoopBell, deadline: float | None) -> AsyncGenerator[News, None]:
    """`subscription.heard` on an event loop."""
    try:
        while True:
            for one in listener.news():
                yield one
            if listener.ended:
                return
            until = deadline if listener.begun else None
            if until is not None and time.monotonic() >= until:  # also while the bell rings all the time
                raise TimeoutError
            await bell.wait(until)
    finally:
        listener.leave()


async def end_of(queue: Queue, job_id: int, deadline: float | None = None, *, just_made: bool = False) -> JobEvent:
    """How the job ends. Of one that was `just_made`, nothing is asked before. Raises TimeoutError after the deadline,
    in monotonic seconds; JobNotFound and StoreError.
    """
    bell = LoopBell()
    wanted = Subscription(queue._watcher, job_id, bell.ring, only_end=True, just_made=just_made)
    return [event async for event in heard(wanted, bell, deadline)][-1]


async def called(queue: Queue, lane: str, work: Callable[[], Answer]) -> Answer:
    """What `work` returns in the thread of the lane; it is not called if the task is cancelled before its turn."""
    return await asyncio.wrap_future(queue._lanes[lane].call(work))


async def job_of(queue: Queue, job_id: int) -> Job:
    """Raises JobNotFound and StoreError."""
    return await called(queue, READER, functools.partial(queue.job, job_id))


async def too_late(queue: Queue, job_id: int, seconds: float | None) -> WaitTimeout:
    """What is raised when the time is up. The database may be slow to answer why the job has not started: nobody waits
    long for that.
    """
    why = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LAST_LOOK):
            why = await called(queue, READER, functools.partial(queue._why_not_started, job_id))
    return WaitTimeout(job_id, seconds or 0.0).explained(why)


async def insert(
    queue: Queue, wanted: Callable[[], NewJob], *, cancel: bool = False, inserted: Inserted | None = None
) -> Put:
    """`put` for the job that `wanted` returns. If the task is cancelled, so is its job, with `cancel`."""
    made: list[NewJob] = []

    def new_job() -> NewJob:
        made.append(wanted())
        return made[0]

    put_each = queue._put_each if inserted is None else functools.partial(_put_each, queue._put_each, inserted)
    begun = queue._lanes[WRITER].insert(new_job, put_each)
    try:
        job_id, new = await asyncio.wrap_future(begun)
    except asyncio.CancelledError:
        if cancel:  # its turn comes after the insert
            queue._lanes[WRITER].call(functools.partial(_cancel_what_it_made, queue, begun))
        raise
    if not new and made[0].once:
        with naming(job_id):
            require_same(await job_of(queue, job_id), made[0])
    return job_id, new


def _put_each(put_each: PutEach, inserted: Inserted, jobs: list[NewJob]) -> list[Put | Exception]:
    answers = put_each(jobs)
    inserted([job for job, answer in zip(jobs, answers, strict=True) if isinstance(answer, tuple) and answer[1]])
    return answers


def _cancel_what_it_made(queue: Queue, begun: Future[Put]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        queue._give_up(begun.result()[0])


async def run(queue: Queue, wanted: Callable[[], NewJob], limit: float | None, *, cancel: bool) -> Any:
    """See `Queue.run`. `limit` is its timeout, in seconds."""
    deadline = deadline_after(limit)
    job_id, new = await insert(queue, wanted, cancel=cancel)
    with naming(job_id):
        try:
            return await result_of_job(queue, job_id, deadline, new=new)
        except TimeoutError:
            if cancel:
                await cancel_job(queue, job_id)
            await make_durable(queue)
            raise await too_late(queue, job_id, limit) from None
        except JobFailed:
            await make_durable(queue)
            raise
        except BaseException:  # also whatever a signal handler raises
            if cancel:
                _cancel_later(queue, job_id)
            raise


async def patiently(look: Callable[[], Awaitable[Answer]], deadline: float | None) -> Answer:
    """What a look finds. One that fails is made again until the deadline, in monotonic seconds, and then raises
    TimeoutError; without a deadline it raises StoreError.
    """
    while True:
        try:
            return await look()
        except StoreError:
            if deadline is None:
                raise
            if (left := deadline - time.monotonic()) <= 0:
                raise TimeoutError from None
        await asyncio.sleep(min(left, AGAIN))


async def result_of_job(queue: Queue, job_id: int, deadline: float | None, *, new: bool = False) -> Any:
    """Raises JobFailed if it ends without a result; TimeoutError after the deadline, in monotonic seconds. A database
    that cannot be used tells nothing about the job: it is waited for; without a deadline, raises StoreError.
    """
    while True:
        event = await patiently(functools.partial(end_of, queue, job_id, deadline, just_made=new), deadline)
        if event.status is Status.DONE:
            return event.result
        job = await patiently(functools.partial(job_of, queue, job_id), deadline)
        if job.status.finished:  # nobody has retried it in between
            return result_of(job)
        new = False


async def cancel_job(queue: Queue, job_id: int) -> None:
    """Unless it has just ended; also if the task that awaits this is cancelled."""
    try:
        await asyncio.wrap_future(_cancel_later(queue, job_id))
    except asyncio.CancelledError:
        _cancel_later(queue, job_id)  # the call that was awaited is not made if it had not begun
        raise


def _cancel_later(queue: Queue, job_id: int) -> Future[None]:
    return queue._lanes[WRITER].call(functools.partial(queue._give_up, job_id))


async def make_durable(queue: Queue) -> None:
    """Before somebody is told the id of a job that has no result yet. Raises StoreError."""
    await called(queue, WRITER, queue._make_durable)
