"""`AsyncQueue.run`, and its parts for the admin process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from supervisor.client import requests
from supervisor.client.lanes import WRITER, Put, PutEach
from supervisor.client.listener import Listener
from supervisor.client.requests import AGAIN, give_up, naming, result_of
from supervisor.domain.errors import JobFailed, StoreError, WaitTimeout
from supervisor.domain.intake import require_same, waiting_limit
from supervisor.domain.job import JobEvent, NewJob, Status

if TYPE_CHECKING:
    from supervisor.client.asynchronous import AsyncQueue
    from supervisor.client.queue import Queue

Answer = TypeVar("Answer")
Inserted = Callable[[list[NewJob]], object]
"""Called with the jobs that a commit has inserted, in the thread of those that write. It must not raise."""


async def run(queue: AsyncQueue, wanted: Callable[[], NewJob], timeout: float | None, cancel: bool) -> Any:
    """See `AsyncQueue.run`."""
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
            raise WaitTimeout(job_id, limit or 0.0) from None
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
        event = await _end(queue, job_id, deadline, new)
        if event.status is Status.DONE:
            return event.result
        job = await patiently(lambda: queue.job(job_id), deadline)
        if job.status.finished:  # nobody has retried it in between
            return result_of(job)
        new = False


async def _end(queue: AsyncQueue, job_id: int, deadline: float | None, new: bool) -> JobEvent:
    """How it ends; if it is not `new`, this is looked at before the deadline counts."""
    loop, bell, watcher = asyncio.get_running_loop(), asyncio.Event(), queue._queue._watcher
    listener, looked = Listener(job_id, lambda: loop.call_soon_threadsafe(bell.set), only_end=True, just_made=new), new
    try:
        while True:
            try:
                watcher.attend(listener)  # again after a failure
                event = listener.take()
            except StoreError:
                if deadline is None:
                    raise
                event = listener.event  # the end may have come just before
                looked = True
            if event is not None and event.status.finished:
                return event
            async with asyncio.timeout_at(deadline if looked or listener.event is not None else None):
                await bell.wait()
            bell.clear()
    finally:
        watcher.leave(listener)


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
    await asyncio.wrap_future(lane.call(functools.partial(requests.make_durable, queue._queue)))


def _cancel_later(queue: Queue, job_id: int) -> Future[None]:
    return queue._lanes[WRITER].call(functools.partial(give_up, queue, job_id))


def _cancel_what_it_made(queue: Queue, begun: Future[Put]) -> None:
    if not begun.cancelled() and begun.exception() is None:
        give_up(queue, begun.result()[0])
