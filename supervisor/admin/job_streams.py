"""Streams of jobs as server-sent events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from supervisor.admin.watch import HEARTBEAT, TooManyListeners
from supervisor.client import job_streams
from supervisor.client.asynchronous import AsyncQueue
from supervisor.domain.job_stream import Position, StreamEvent, data_of

LISTENERS = 400  # at most: other requests need some of the connections, too
_AT_ONCE = 48 * 1024  # bytes for one listener; what is more waits
_REST = 0.1  # seconds until then


class JobStreams:
    """All streams of one admin process."""

    def __init__(self, queue: AsyncQueue) -> None:
        self._streams = job_streams.JobStreams(queue)

    @property
    def listeners(self) -> int:
        return self._streams.listeners

    async def join(self, job_id: int, at: Position | None = None, *, show: bool) -> JobListener:
        """Follow a job, behind a position or from the start of its run, until `leave` is called on the listener.
        `show` says whether it may see the chunks and the result.

        Raises JobNotFound, StoreError and TooManyListeners.
        """
        if self.listeners >= LISTENERS:
            raise TooManyListeners(f"{LISTENERS} clients already follow jobs, which is the maximum")
        return JobListener(await self._streams.join(job_id, at), show=show)

    def end(self) -> None:
        """The process is about to end: so do all streams. Clients come again."""
        self._streams.end()


class JobListener:
    """A client that follows a job."""

    def __init__(self, listener: job_streams.JobListener, *, show: bool) -> None:
        self._listener = listener
        self._show = show

    def leave(self) -> None:
        self._listener.leave()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, until the job has ended."""
        follower, bell = self._listener.follower, self._listener.bell
        bell.set()
        while not (follower.ended or self._listener.streams.leaving):
            try:
                await asyncio.wait_for(bell.wait(), HEARTBEAT)
            except TimeoutError:
                yield b": still here\n\n"
                continue
            bell.clear()
            message = b"".join(self._message(event) for event in self._listener.news())
            if message:
                yield message
            if len(message) > _AT_ONCE:
                await asyncio.sleep(_REST)

    def _message(self, event: StreamEvent) -> bytes:
        return f"id: {event.at}\nevent: {event.name}\ndata: {data_of(event, show=self._show)}\n\n".encode()
