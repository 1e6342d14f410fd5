"""Streams of jobs: what becomes of them and what they emit, looked up once for all who follow them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.watch import HEARTBEAT, TooManyListeners
from supervisor.client.asynchronous import AsyncQueue
from supervisor.domain.chunks import Chunk, as_text
from supervisor.domain.errors import JobNotFound, StoreError
from supervisor.domain.job import JobEvent, Status
from supervisor.domain.job_stream import Follower, Piece, Position, StreamEvent
from supervisor.ops.posted import registered
from supervisor.system.chunk_ring import RING_BYTES, ChunkReader
from supervisor.system.scoreboard import chunks_of

LISTENERS = 400  # at most: other requests need some of the connections, too
EVERY = 0.025  # seconds between two looks at the rings while a followed job runs
_SHARE = 4  # a look that takes long is followed by a rest so many times as long
_AT_ONCE = 48 * 1024  # bytes for one listener; what is more waits
_REST = 0.1  # seconds until then
_TRY_AGAIN = 1.0  # seconds after the database could not be used


class JobStreams:
    """All streams of one admin process. While nobody listens nothing is read and no timer runs."""

    def __init__(self, queue: AsyncQueue, executor: StoreExecutor, *, show: bool) -> None:
        self._queue = queue
        self._executor = executor
        self._show = show
        self._feeds: dict[int, _Feed] = {}
        self._listeners: set[JobListener] = set()
        self._rings = _Rings()
        self._found_at = 0.0  # monotonic seconds of the last look for rings
        self._finding = asyncio.Lock()
        self._looking: asyncio.Task[None] | None = None
        self.leaving = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def join(self, job_id: int, at: Position | None = None) -> JobListener:
        """Follow a job, behind a position or from the start of its run, until `leave` is called with the listener.

        Raises JobNotFound, StoreError and TooManyListeners.
        """
        if len(self._listeners) >= LISTENERS:
            raise TooManyListeners(f"{LISTENERS} clients already follow jobs, which is the maximum")
        feed = self._feeds.get(job_id)
        if feed is None:
            feed = self._feeds[job_id] = _Feed(job_id)
            feed.pump = asyncio.get_running_loop().create_task(self._pump(feed))
        listener = JobListener(self, feed, Follower(at, show=self._show))
        self._listeners.add(listener)
        feed.bells.add(listener.bell)
        try:
            while feed.state is None and not self.leaving:
                await listener.bell.wait()
                listener.bell.clear()
            if isinstance(feed.state, Exception):
                raise feed.state
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
            boards = await self._executor.ask(
                lambda operations: [
                    Path(record.scoreboard) for record, alive, _ in registered(operations) if alive is not False
                ]
            )
            self._rings.use({chunks_of(board) for board in boards})
            self._found_at = at

    async def _look_on(self) -> None:
        """Look as long as a followed job runs."""
        while any(feed.runs for feed in self._feeds.values()):
            began = time.monotonic()
            self._look()
            await asyncio.sleep(max(EVERY, _SHARE * (time.monotonic() - began)))
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
                feed.add(found[feed.job_id], show=self._show)


class _Rings:
    """The rings of the supervisors on this host, and how far each was read."""

    def __init__(self) -> None:
        self._readers: dict[Path, ChunkReader] = {}
        self._read: dict[tuple[Path, int], int] = {}

    def use(self, files: set[Path]) -> None:
        for path in self._readers.keys() - files:
            self._readers.pop(path).close()
            self._read = {key: end for key, end in self._read.items() if key[0] != path}
        for path in files - self._readers.keys():
            self._readers[path] = ChunkReader(path)

    def read(self, wanted: object, new: set[int]) -> Iterator[Chunk]:
        """What was added since the last time; of the `new` jobs, all that is there."""
        for path, reader in self._readers.items():
            for slot in reader.slots():
                since = self._read.get((path, slot), 0)
                with contextlib.suppress(OSError):
                    records, self._read[path, slot] = reader.read(slot, 0 if new else since)
                    for record in records:
                        if record.job in new or (record.position >= since and record.job in wanted):  # type: ignore[operator]
                            yield Chunk(*record[1:])

    def close(self) -> None:
        self.use(set())


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
        self._pieces: deque[Piece] = deque()
        self._size = 0

    def tell(self, state: JobEvent | StoreError | JobNotFound) -> None:
        self.state = state
        self.ring()

    def ring(self) -> None:
        for bell in self.bells:
            bell.set()

    def add(self, chunks: list[Chunk], *, show: bool) -> None:
        latest = self._pieces[-1].at if self._pieces else Position()
        for chunk in sorted(chunks, key=lambda chunk: (chunk.token, chunk.number)):
            at = Position(chunk.token, chunk.number)
            text = as_text(chunk, show=show) if at > latest else None
            if text is not None:
                self._pieces.append(Piece(at, chunk.attempt, text))
                self._size += len(text)
        while self._size > RING_BYTES:
            self._size -= len(self._pieces.popleft().text)
        self.ring()

    def behind(self, at: Position) -> list[Piece]:
        found = []
        for piece in reversed(self._pieces):
            if piece.at <= at:
                break
            found.append(piece)
        return found[::-1]


class JobListener:
    """A client that follows a job. A slow one misses chunks, and is told how many, and states, but never the latest."""

    def __init__(self, streams: JobStreams, feed: _Feed, follower: Follower) -> None:
        self.feed = feed
        self.bell = asyncio.Event()
        self._streams = streams
        self._follower = follower

    def leave(self) -> None:
        self._streams.leave(self)

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, until the job has ended."""
        follower = self._follower
        self.bell.set()
        while not (follower.ended or self._streams.leaving):
            try:
                await asyncio.wait_for(self.bell.wait(), HEARTBEAT)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self.bell.clear()
            message = b"".join(_message(event) for event in self._news())
            if message:
                yield message
            if len(message) > _AT_ONCE:
                await asyncio.sleep(_REST)

    def _news(self) -> list[StreamEvent]:
        state = self.feed.state
        if isinstance(state, JobEvent):
            return self._follower.news(state, self.feed.behind(self._follower.at))
        if isinstance(state, JobNotFound):
            return self._follower.deleted()
        return self._follower.trouble(str(state)) if state is not None else []


def _message(event: StreamEvent) -> bytes:
    return f"id: {event.at}\nevent: {event.name}\ndata: {event.data}\n\n".encode()
