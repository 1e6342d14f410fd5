"""`Queue.follow` and `AsyncQueue.follow`: what becomes of a job, and what it emits.

Changes of the job come from the queue's watcher, and what it emits from memory that its host's processes share. On
an event loop, all who follow jobs share one look at that memory; a thread looks for itself.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from supervisor.client.job_streams import JobStreams
from supervisor.client.lanes import LISTER
from supervisor.client.listener import Bell, Listener
from supervisor.domain.errors import WaitTimeout
from supervisor.domain.intake import job_id_of, waiting_limit
from supervisor.domain.job import JobEvent, Status
from supervisor.domain.job_stream import Follower, FollowEvent, follow_event
from supervisor.ops import job_chunks
from supervisor.ops.job_chunks import LatestChunks, Rings
from supervisor.store.base import Operations

if TYPE_CHECKING:
    from supervisor.client.asynchronous import AsyncQueue
    from supervisor.client.queue import Queue

Answer = TypeVar("Answer")


def follow(queue: Queue, job_id: int, timeout: float | None) -> Iterator[FollowEvent]:
    """See `Queue.follow`."""
    job_id, limit = job_id_of(job_id), waiting_limit(timeout)
    deadline = None if limit is None else time.monotonic() + limit
    stream = _Stream(queue, job_id)
    with stream.bell.present:
        try:
            while True:
                yield from stream.news()
                if stream.ended:
                    return
                if stream.begun and deadline is not None and time.monotonic() >= deadline:
                    raise WaitTimeout(job_id, limit or 0.0).explained(queue._why_not_started(job_id))
                stream.wait(deadline)
        finally:
            stream.close()


class _Stream:
    """One job that a thread follows."""

    def __init__(self, queue: Queue, job_id: int) -> None:
        self._queue = queue
        self._job_id = job_id
        self.bell = Bell()
        self._listener = Listener(job_id, self.bell.ring, present=self.bell.present)
        self._follower = Follower()
        self._rings = Rings()
        self._chunks = LatestChunks()
        self._state: JobEvent | None = None
        self._token = 0
        self._elsewhere = False
        self._rest = job_chunks.EVERY

    @property
    def begun(self) -> bool:
        return self._state is not None

    @property
    def ended(self) -> bool:
        return self._follower.ended

    def news(self) -> Iterator[FollowEvent]:
        """What is new. Raises JobNotFound and StoreError."""
        self.bell.clear()
        self._queue._watcher.attend(self._listener)  # each time: the program may have forked in between
        state = self._state = (
            self._listener.take() or self._state
        )  # before the rings: what it emitted until then is there
        if state is None:
            return
        self._find_rings(state)
        self._look()
        for event in self._follower.news(state, self._chunks.behind(self._follower.at), elsewhere=self._elsewhere):
            yield follow_event(event, state)

    def _find_rings(self, state: JobEvent) -> None:
        if state.token in (0, self._token):
            return
        self._look()  # a supervisor that has ended has taken its file with it
        where = self._ask(job_chunks.whereabouts)
        self._rings.use(where.files)
        self._elsewhere = (
            bool(where.elsewhere)
            and state.status is Status.RUNNING
            and self._ask(
                lambda operations: job_chunks.runs_elsewhere(operations, self._job_id, state.token, where.elsewhere)
            )
        )
        self._token = state.token

    def _ask(self, question: Callable[[Operations], Answer]) -> Answer:
        return self._queue._asked(self._queue._connections.lister, question)

    def _look(self) -> None:
        began = time.monotonic()
        self._chunks.add([*self._rings.read({self._job_id}, ())])  # each ring is read from its start when it is found
        self._rest = max(job_chunks.EVERY, job_chunks.SHARE * (time.monotonic() - began))

    def wait(self, deadline: float | None) -> None:
        """Until there may be news, or the time is up; at most a second."""
        until = deadline if self.begun else None
        if self._state is not None and self._state.status is Status.RUNNING:
            due = time.monotonic() + self._rest
            until = due if until is None else min(until, due)
        self.bell.wait(until)

    def close(self) -> None:
        self._queue._watcher.leave(self._listener)
        self._rings.close()


async def follow_async(queue: AsyncQueue, job_id: int, timeout: float | None) -> AsyncGenerator[FollowEvent, None]:
    """See `AsyncQueue.follow`."""
    job_id, limit = job_id_of(job_id), waiting_limit(timeout)
    loop, all_streams = asyncio.get_running_loop(), queue._streams
    deadline = None if limit is None else loop.time() + limit
    streams = all_streams.get(loop)
    if streams is None:
        streams = all_streams[loop] = JobStreams(queue, _InLane(queue._queue))
    try:
        listener = await streams.join(job_id)
        try:
            feed, follower = listener.feed, listener.follower
            while True:
                listener.bell.clear()
                state = feed.state
                if not isinstance(state, JobEvent):
                    raise state or AssertionError("a listener joins when there is a state")
                for event in follower.news(state, feed.behind(follower.at), elsewhere=feed.elsewhere):
                    yield follow_event(event, state)
                if follower.ended:
                    return
                try:
                    if deadline is not None and loop.time() >= deadline:  # also while the bell rings all the time
                        raise TimeoutError
                    async with asyncio.timeout_at(deadline):
                        await listener.bell.wait()
                except TimeoutError:
                    late = WaitTimeout(job_id, limit or 0.0)
                    raise late.explained(await queue._why_not_started(job_id)) from None
        finally:
            listener.leave()
    finally:
        if not streams.listeners:
            all_streams.pop(loop, None)


class _InLane:
    """Implements `job_streams.Executor` for a queue."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    async def ask(self, question: Callable[[Operations], Answer]) -> Answer:
        ask = functools.partial(self._queue._asked, self._queue._connections.lister, question)
        return await asyncio.wrap_future(self._queue._lanes[LISTER].call(ask))
