"""`Queue.follow` and `AsyncQueue.follow`: what becomes of a job, and what it emits.

The queue's watcher tells of both. What a job emits is in memory that its host's processes share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from supervisor.client.subscription import Bell, Subscription, rung
from supervisor.client.watcher import Watcher
from supervisor.domain.errors import WaitTimeout
from supervisor.domain.intake import job_id_of, waiting_limit
from supervisor.domain.job import JobEvent
from supervisor.domain.job_stream import Follower, FollowEvent, Position, StreamEvent, follow_event


class Stream:
    """Somebody who follows a job, behind a position or from the start of its run. A slow one misses chunks, and is told
    how many, and states, but never the latest. `ring` is called, in another thread, when there are `news`.
    """

    def __init__(self, watcher: Watcher, job_id: int, ring: Callable[[], object], at: Position | None = None) -> None:
        self.state: JobEvent | None = None
        self.follower = Follower(at)
        self._watcher = watcher
        self._subscription = Subscription(job_id, ring, follows=True)

    def begin(self) -> bool:
        """Whether the job's state is known. Raises JobNotFound and StoreError."""
        self._watcher.subscribe(self._subscription)  # each time: the program may have forked in between
        before, self.state = self.state, self._subscription.take() or self.state
        if before is None and self.state is not None and self.follower.at.token > self.state.token:
            self.follower.at = Position()  # of no run of this job: without it, its chunks would be left out
        return self.state is not None

    def news(self) -> list[StreamEvent]:
        """What is new, if anything. Raises JobNotFound and StoreError."""
        self.begin()  # before the chunks: what the job emitted until then is there
        state, feed = self.state, self._subscription.feed
        if state is None or feed is None:
            return []
        return self.follower.news(state, feed.behind(self.follower.at), elsewhere=feed.elsewhere)

    def follow_events(self) -> list[FollowEvent]:
        """The same, for a program."""
        news = self.news()
        return [] if self.state is None else [follow_event(event, self.state) for event in news]

    def leave(self) -> None:
        self._watcher.leave(self._subscription)


def follow(
    watcher: Watcher, job_id: int, timeout: float | None, explain: Callable[[int], str]
) -> Iterator[FollowEvent]:
    """See `Queue.follow`. `explain` says why a job has not started."""
    job_id, limit = job_id_of(job_id), waiting_limit(timeout)
    deadline = None if limit is None else time.monotonic() + limit
    bell = Bell()
    stream = Stream(watcher, job_id, bell.ring)
    try:
        while True:
            yield from stream.follow_events()
            if stream.follower.ended:
                return
            begun = stream.state is not None
            if begun and deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(job_id, limit or 0.0).explained(explain(job_id))
            bell.wait(deadline if begun else None)
    finally:
        stream.leave()


async def follow_async(
    watcher: Watcher, job_id: int, timeout: float | None, explain: Callable[[int], Awaitable[str]]
) -> AsyncGenerator[FollowEvent, None]:
    """See `AsyncQueue.follow`."""
    job_id, limit = job_id_of(job_id), waiting_limit(timeout)
    loop, bell = asyncio.get_running_loop(), asyncio.Event()
    deadline = None if limit is None else loop.time() + limit
    stream = Stream(watcher, job_id, lambda: loop.call_soon_threadsafe(bell.set))
    try:
        while True:
            bell.clear()
            for event in stream.follow_events():
                yield event
            if stream.follower.ended:
                return
            until = None if stream.state is None else deadline
            if until is not None and loop.time() >= until:  # also while the bell rings all the time
                raise WaitTimeout(job_id, limit or 0.0).explained(await explain(job_id))
            await rung(bell, until)
    finally:
        stream.leave()
