"""Waiting for the end and the result of a job, written once: for threads and for tasks of an event loop.

The methods of `Caller` are coroutines. In a thread each part of them blocks, so that one step of the coroutine is the
whole call: see `at_once`.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from supervisor.client.administration import Administration
from supervisor.client.connections import READER, WRITER, Put
from supervisor.client.subscription import Bell, Subscription, deadline_after, heard
from supervisor.domain.enqueueing import require_same
from supervisor.domain.errors import JobFailed, QueueError, StoreError, WaitTimeout
from supervisor.domain.job import Job, JobEvent, NewJob, Status
from supervisor.domain.values import job_id_of, waiting_limit

Answer = TypeVar("Answer")

_AGAIN = 0.1  # seconds from a look that has failed to the next one


class ResultUnknown(StoreError):
    """The job `job_id` is in the table, but the database cannot be used any more, and its result is not known.

    Whoever makes the same request again without an idempotency key has a second job.
    """

    def __init__(self, job_id: int, error: StoreError) -> None:
        super().__init__(f"job {job_id} was enqueued, and its result is not known: {error}")
        self.job_id = job_id


@contextlib.contextmanager
def naming(job_id: int) -> Iterator[None]:
    """Errors of the database name this job, which is in the table."""
    try:
        yield
    except StoreError as error:
        raise ResultUnknown(job_id, error) from error


def result_of(job: Job) -> Any:
    """Of a finished job. Raises JobFailed if it has none."""
    if job.status is not Status.DONE:
        raise JobFailed(job)
    return job.result


class Caller:
    """Who waits for jobs of a queue: a thread, which does everything itself. A task of an event loop overrides how.

    Deadlines are monotonic seconds. All raise StoreError, and JobNotFound.
    """

    def __init__(self, queue: Administration) -> None:
        self._queue = queue

    async def job(self, job_id: int) -> Job:
        return await self.call(READER, functools.partial(self._queue.job, job_id))

    async def make_durable(self) -> None:
        """Before somebody is told the id of a job that has no result yet."""
        connections = self._queue._connections
        make_durable = operator.methodcaller("make_durable")
        await self.call(WRITER, functools.partial(connections.using, connections.writer, make_durable))

    async def insert(self, wanted: Callable[[], NewJob], *, cancel: bool = False) -> Put:
        """`put` that raises InvalidJob for a job that is found by its idempotency key and was another request's."""
        job, (job_id, new) = await self.put(wanted, cancel=cancel)
        if job.once and not new:
            with naming(job_id):
                require_same(await self.job(job_id), job)
        return job_id, new

    async def run(self, wanted: Callable[[], NewJob], *, timeout: float | None, cancel: bool) -> Any:
        """See `Queue.run`."""
        limit = waiting_limit(timeout)
        deadline = deadline_after(limit)
        job_id, new = await self.insert(wanted, cancel=cancel)
        with naming(job_id):
            try:
                return await self.result(job_id, deadline, new=new)
            except JobFailed:
                await self.make_durable()
                raise
            except BaseException as error:  # also whatever a signal handler raises
                if cancel:
                    self.give_up(job_id)
                late = isinstance(error, TimeoutError) and deadline is not None and time.monotonic() >= deadline
                if not late:  # another TimeoutError is that of a signal handler
                    raise
            await self.make_durable()
            raise await self.too_late(job_id, limit)

    async def wait(self, job_id: int, timeout: float | None = None) -> Job:
        """See `Queue.wait`."""
        job_id, limit = job_id_of(job_id), waiting_limit(timeout)
        deadline = deadline_after(limit)
        while True:
            try:
                await self.end(job_id, deadline)
            except TimeoutError:
                raise await self.too_late(job_id, limit) from None
            job = await self.job(job_id)
            if job.status.finished:  # nobody has retried it in between
                return job

    async def too_late(self, job_id: int, seconds: float | None) -> WaitTimeout:
        """What is raised when the time is up."""
        return WaitTimeout(job_id, seconds or 0.0).explained(await self.why_not_started(job_id))

    async def result(self, job_id: int, deadline: float | None, *, new: bool = False) -> Any:
        """Raises JobFailed if it ends without a result; TimeoutError after the deadline. A database that cannot be used
        tells nothing about the job: it is waited for; without a deadline, raises StoreError.
        """
        while True:
            event = await self.patiently(functools.partial(self.end, job_id, deadline, just_made=new), deadline)
            if event.status is Status.DONE:
                return event.result
            job = await self.patiently(functools.partial(self.job, job_id), deadline)
            if job.status.finished:  # nobody has retried it in between
                return result_of(job)
            new = False

    async def patiently(self, look: Callable[[], Awaitable[Answer]], deadline: float | None) -> Answer:
        """What a look finds. One that fails is made again until the deadline, and then raises TimeoutError; without a
        deadline it raises StoreError: a database that is gone for good would be waited for without end.
        """
        while True:
            try:
                return await look()
            except StoreError:
                if deadline is None:
                    raise
                if (left := deadline - time.monotonic()) <= 0:
                    raise TimeoutError from None
            await self.sleep(min(left, _AGAIN))

    # How a thread does it

    async def call(self, lane: str, work: Callable[[], Answer]) -> Answer:
        """What `work` returns; it uses this connection of the queue."""
        return work()

    async def put(self, wanted: Callable[[], NewJob], *, cancel: bool = False) -> tuple[NewJob, Put]:
        """Insert the job that `wanted` returns. Whoever is interrupted meanwhile cancels it, with `cancel`."""
        job, connections = wanted(), self._queue._connections
        return job, connections.using(connections.writer, lambda producer: producer.put(job))

    async def end(self, job_id: int, deadline: float | None, *, just_made: bool = False) -> JobEvent:
        """How it ends. Of one that was `just_made`, nothing is asked before. Raises TimeoutError."""
        *_, last = self.states(job_id, deadline, only_end=True, just_made=just_made)
        return last

    def states(
        self, job_id: int, deadline: float | None = None, *, only_end: bool = False, just_made: bool = False
    ) -> Iterator[JobEvent]:
        """Raises TimeoutError after the deadline."""
        bell, connections = Bell(), self._queue._connections
        wanted = Subscription(self._queue._watcher, job_id, bell.ring, only_end=only_end, just_made=just_made)
        if not just_made:  # by this thread: there may be nothing to wait for
            now = connections.using(connections.reader, lambda producer: producer.events([job_id]))
            wanted.tell(now.get(job_id))
        return heard(wanted, bell, deadline)

    async def why_not_started(self, job_id: int) -> str:
        return self._queue._why_not_started(job_id)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def give_up(self, job_id: int) -> None:
        """Cancel a job that nobody waits for any longer, unless it has just ended."""
        with contextlib.suppress(QueueError):
            self._queue.cancel(job_id)


def at_once(begin: Callable[[], Coroutine[Any, Any, Answer]]) -> Answer:
    """The answer of a coroutine that never waits: of a thread's `Caller`.

    It is begun here: Ctrl-C finds none that nobody has awaited, of which Python would warn.
    """
    call = begin()
    try:
        call.send(None)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    finally:
        call.close()
    raise AssertionError("it has to be awaited")
