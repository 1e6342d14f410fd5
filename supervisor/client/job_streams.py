"""Those who follow jobs on the event loop of the admin process, which may be about to end."""

from __future__ import annotations

import asyncio

from supervisor.client.asynchronous import AsyncQueue
from supervisor.client.following import Stream
from supervisor.client.subscription import rung
from supervisor.domain.errors import JobNotFound, StoreError
from supervisor.domain.job_stream import Follower, Position, StreamEvent


class JobStreams:
    """All who follow jobs on one event loop."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._watcher = queue._queue._watcher
        self._listeners: set[JobListener] = set()
        self.leaving = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def join(self, job_id: int, at: Position | None = None) -> JobListener:
        """Follow a job, behind a position or from the start of its run, until `leave` is called on the listener.

        Raises JobNotFound and StoreError.
        """
        loop, bell = asyncio.get_running_loop(), asyncio.Event()
        stream = Stream(self._watcher, job_id, lambda: loop.call_soon_threadsafe(bell.set), at)
        listener = JobListener(self, stream, bell)
        self._listeners.add(listener)
        try:
            while not (stream.begin() or self.leaving):
                await rung(bell)
                bell.clear()
        except BaseException:
            listener.leave()
            raise
        return listener

    def leave(self, listener: JobListener) -> None:
        self._listeners.discard(listener)

    def end(self) -> None:
        """The process is about to end: so do all streams. Clients come again."""
        self.leaving = True
        for listener in self._listeners:
            listener.bell.set()


class JobListener:
    """One of them. `bell` is set when there may be news."""

    def __init__(self, streams: JobStreams, stream: Stream, bell: asyncio.Event) -> None:
        self.streams = streams
        self.bell = bell
        self._stream = stream

    @property
    def follower(self) -> Follower:
        return self._stream.follower

    def news(self) -> list[StreamEvent]:
        """What is new; also that the job was deleted, or that the database cannot be used."""
        try:
            return self._stream.news()
        except JobNotFound:
            return self.follower.deleted()
        except StoreError as error:
            return self.follower.trouble(str(error))

    def leave(self) -> None:
        self._stream.leave()
        self.streams.leave(self)
