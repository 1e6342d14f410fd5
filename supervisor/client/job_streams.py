"""Streams of jobs on an event loop: what becomes of them and what they emit, looked up once for all who follow them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Protocol, TypeVar

from supervisor.domain.errors import JobNotFound, StoreError
from supervisor.domain.job import JobEvent, Status
from supervisor.domain.job_stream import Chunk, Follower, Position
from supervisor.ops import job_chunks
from supervisor.ops.job_chunks import LatestChunks, Rings, Whereabouts
from supervisor.store.base import Operations

if TYPE_CHECKING:
    from supervisor.client.asynchronous import AsyncQueue

Answer = TypeVar("Answer")

_TRY_AGAIN = 1.0  # seconds after the database could not be used


class Executor(Protocol):
    """Makes calls to the database in a thread."""

    async def ask(self, question: Callable[[Operations], Answer]) -> Answer: ...


class JobStreams:
    """All streams of one event loop. While nobody listens nothing is read and no timer runs."""

    def __init__(self, queue: AsyncQueue, executor: Executor) -> None:
        self._queue = queue
        self._executor = executor
        self._feeds: dict[int, _Feed] = {}
        self._listeners: set[JobListener] = set()
        self._rings = Rings()
        self._found_at = 0.0  # monotonic seconds of the last look for rings
        self._elsewhere: frozenset[str] = frozenset()
        self._finding = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self.leaving = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def join(self, job_id: int, at: Position | None = None) -> JobListener:
        """Follow a job, behind a position or from the start of its run, until `leave` is called with the listener.

        Raises JobNotFound and StoreError.
        """
        feed = self._feeds.get(job_id)
        if feed is None:
            feed = self._feeds[job_id] = _Feed(job_id)
            feed.pump = asyncio.get_running_loop().create_task(self._pump(feed))
        listener = JobListener(self, feed, Follower(at))
        self._listeners.add(listener)
        feed.bells.add(listener.bell)
        try:
            while feed.state is None and not self.leaving:
                await listener.bell.wait()
                listener.bell.clear()
            if isinstance(feed.state, Exception):
                raise feed.state
            if at is not None and isinstance(feed.state, JobEvent) and at.token > feed.state.token:
                listener.follower.at = Position()  # of no run of this job: without it, its chunks would be left out
        except BaseException:
            self.leave(listener)
            raise
        return listener

    def leave(self, listener: JobListener) -> None:
        self._listeners.discard(listener)
        feed = listener.feed
        feed.bells.discard(listener.bell)
        if not feed.bells:
            self._forget(feed)
            if feed.pump is not None:
                feed.pump.cancel()
        if not self._feeds:
            if self._looking is not None:
                self._looking.cancel()
                self._looking = None
            self._rings.close()

    def end(self) -> None:
        """The process is about to end: so do all streams. Clients come again."""
        self.leaving = True
        for listener in self._listeners:
            listener.bell.set()

    def _forget(self, feed: _Feed) -> None:
        """Whoever comes from now on gets another one."""
        if self._feeds.get(feed.job_id) is feed:
            del self._feeds[feed.job_id]

    async def _pump(self, feed: _Feed) -> None:
        """Tell what becomes of the job, and before each change what was emitted until then."""
        while True:
            try:
                async with aclosing(self._queue.events(feed.job_id)) as events:
                    async for event in events:
                        await self._look_for(feed, event)
                        if event.status.finished:
                            self._forget(feed)
                        feed.tell(event)
                return
            except JobNotFound as error:
                self._forget(feed)
                feed.tell(error)
                return
            except StoreError as error:
                feed.tell(error)
                await asyncio.sleep(_TRY_AGAIN)

    async def _look_for(self, feed: _Feed, event: JobEvent) -> None:
        if event.token and event.token != feed.token:
            feed.token = event.token
            self._look()  # a supervisor that has ended has taken its file with it
            await self._find_rings(time.monotonic())
            feed.elsewhere = await self._runs_elsewhere(event)
        self._look()
        feed.runs = event.status is Status.RUNNING
        if feed.runs and self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look_on())

    async def _find_rings(self, since: float) -> None:
        """Those of all supervisors on this host, as they are at that time or later."""
        async with self._finding:
            if self._found_at >= since:
                return
            at = time.monotonic()
            found: Whereabouts = await self._executor.ask(job_chunks.whereabouts)
            self._rings.use(found.files)
            self._elsewhere, self._found_at = found.elsewhere, at

    async def _runs_elsewhere(self, event: JobEvent) -> bool:
        elsewhere = self._elsewhere
        if not elsewhere or event.status is not Status.RUNNING:
            return False
        return await self._executor.ask(
            lambda operations: job_chunks.runs_elsewhere(operations, event.job_id, event.token, elsewhere)
        )

    async def _look_on(self) -> None:
        """Look as long as a followed job runs."""
        while any(feed.runs for feed in self._feeds.values()):
            began = time.monotonic()
            self._look()
            await asyncio.sleep(max(job_chunks.EVERY, job_chunks.SHARE * (time.monotonic() - began)))
        self._looking = None

    def _look(self) -> None:
        """Give the feeds what was emitted since the last look; a new one gets all that is still there."""
        new = {feed.job_id for feed in self._feeds.values() if feed.new}
        found: dict[int, list[Chunk]] = {}
        for chunk in self._rings.read(self._feeds.keys(), new):
            found.setdefault(chunk.job, []).append(chunk)
        for feed in self._feeds.values():
            feed.new = False
            if feed.job_id in found:
                feed.add(found[feed.job_id])


class _Feed:
    """One job that is followed: how it is, and the latest of its chunks."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.state: JobEvent | StoreError | JobNotFound | None = None
        self.bells: set[asyncio.Event] = set()
        self.pump: asyncio.Task[None] | None = None
        self.new = True  # nothing was read for it
        self.runs = False
        self.token = 0
        self.elsewhere = False  # what this run emits cannot be read here
        self._chunks = LatestChunks()

    def tell(self, state: JobEvent | StoreError | JobNotFound) -> None:
        self.state = state
        self.ring()

    def ring(self) -> None:
        for bell in self.bells:
            bell.set()

    def add(self, chunks: list[Chunk]) -> None:
        self._chunks.add(chunks)
        self.ring()

    def behind(self, at: Position) -> list[Chunk]:
        return self._chunks.behind(at)


class JobListener:
    """Somebody who follows a job. A slow one misses chunks, and is told how many, and states, but never the latest.

    `bell` is set when there may be news: they come of `follower.news` with what `feed` has.
    """

    def __init__(self, streams: JobStreams, feed: _Feed, follower: Follower) -> None:
        self.feed = feed
        self.follower = follower
        self.bell = asyncio.Event()
        self.streams = streams

    def leave(self) -> None:
        self.streams.leave(self)
