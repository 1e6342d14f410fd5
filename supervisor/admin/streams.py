"""The overview, read once for all requests at about the same time, and sent to those who listen to its changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from supervisor.admin.answers import AGAIN, Refused
from supervisor.admin.charts import ChartData, Period
from supervisor.admin.store_executor import StoreExecutor
from supervisor.client.asynchronous import LoopBell
from supervisor.client.queue import Queue
from supervisor.client.subscription import Stream
from supervisor.domain.errors import JobNotFound, StoreError
from supervisor.domain.history import minute_of
from supervisor.domain.job_stream import Position
from supervisor.domain.text import json_safe
from supervisor.ops.status import Costs, gather
from supervisor.ops.views import Overview

FRESH = 1.0  # seconds for which an overview is reused
HEARTBEAT = 15.0  # seconds of silence after which a listener gets a comment
COMMENT = b": still here\n\n"
LISTENERS = 50  # at most
FOLLOWERS = 400  # of jobs, at most: other requests need some of the connections, too

# Values that change only because time passes; a client can update them itself.
_OF_TIME = {"time", "running_for", "beat_age", "oldest_age", "next_due_in", "next_in"}


class EventStream(StreamingResponse):
    """Server-sent events, until they end or the client disconnects. Then `leave` is called."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], leave: Callable[[], object]) -> None:
        super().__init__(events, headers={"X-Accel-Buffering": "no"})
        self._leave = leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._leave()


class JobStreams:
    """Those who follow jobs. `leaving`: the process is about to end, and so do all streams; clients come again."""

    def __init__(self, queue: Queue) -> None:
        self._watcher = queue._watcher
        self._bells: dict[Stream, LoopBell] = {}
        self.leaving = False

    @property
    def listeners(self) -> int:
        return len(self._bells)

    async def join(self, job_id: int, at: Position | None = None) -> Stream:
        """Follow a job, behind a position or from the start of its run, until `leave` is called with the stream.

        Raises JobNotFound, StoreError, and Refused if there are too many.
        """
        if len(self._bells) >= FOLLOWERS:
            raise Refused(503, f"{FOLLOWERS} clients already follow jobs, which is the maximum", headers=AGAIN)
        bell = LoopBell()
        stream = Stream(self._watcher, job_id, bell.ring, at)
        self._bells[stream] = bell
        try:
            while not (stream.look() or self.leaving):
                await bell.wait()
        except BaseException:
            self.leave(stream)
            raise
        return stream

    def leave(self, stream: Stream) -> None:
        del self._bells[stream]
        stream.leave()

    def end(self) -> None:
        self.leaving = True
        for bell in self._bells.values():
            bell.ring()

    async def events(self, stream: Stream, *, show: bool) -> AsyncIterator[bytes]:
        """Until the job has ended. `show`: with its chunks and its result."""
        trouble, told_at = "", time.monotonic()
        while not (stream.ended or self.leaving):
            try:
                news = stream.news()
            except JobNotFound:
                yield _message("end", {"status": "deleted"}, stream.at)
                return
            except StoreError as error:
                message = b"" if str(error) == trouble else _message("trouble", {"error": str(error)}, stream.at)
                trouble = str(error)
            else:
                message = b"".join(_message(one.name, one.as_sent(show=show), one.at) for one in news)
                trouble = "" if news else trouble
            if message or time.monotonic() - told_at >= HEARTBEAT:
                yield message or COMMENT
                told_at = time.monotonic()
            else:
                await self._bells[stream].wait(told_at + HEARTBEAT)


def _message(name: str, data: Any, at: Position | None = None) -> bytes:
    text = data if isinstance(data, str) else json.dumps(json_safe(data), ensure_ascii=False, allow_nan=False)
    return ("" if at is None else f"id: {at}\n").encode() + f"event: {name}\ndata: {text}\n\n".encode()


class OverviewWatch:
    """Reads the overview on request. Without requests and listeners, nothing is read and no timer runs."""

    def __init__(self, executor: StoreExecutor) -> None:
        self.listeners = 0
        self._executor = executor
        self._guard = asyncio.Lock()
        self._costs = Costs()
        self._seen: Overview | None = None
        self._at = 0.0
        self._news: tuple[Overview | None, Any, bytes] = (None, None, b"")

    async def overview(self) -> Overview:
        """The state, at most FRESH seconds old. Raises StoreError if the database cannot be used."""
        async with self._guard:
            if self._seen is None or time.monotonic() - self._at > FRESH:
                self._seen = None
                self._seen = await self._executor.ask(
                    lambda operations: gather(self._executor.engine, operations, costs=self._costs)
                )
                self._at = time.monotonic()
            return self._seen

    async def chart_data(self, period: Period, now: float) -> ChartData:
        """The history of a period, read at most as often as costs a fortieth of a core. `now` is Unix seconds.

        Raises StoreError if the database cannot be used.
        """
        since = period.times(now)[0]
        rows = await self._executor.ask(
            lambda operations: self._costs.answer(
                period, 40, lambda: operations.history.added_up(since, minute_of(now), period.step)
            )
        )
        return ChartData(rows, period, now)

    def listen(self) -> EventStream:
        """The overview as events: at once, and when more than the time has changed. Raises Refused for one too many."""
        if self.listeners >= LISTENERS:
            raise Refused(503, f"there are already {LISTENERS} listeners, which is the maximum", headers=AGAIN)
        self.listeners += 1
        return EventStream(self._events(), self._leave)

    def _leave(self) -> None:
        self.listeners -= 1

    async def _events(self) -> AsyncIterator[bytes]:
        """A slow client misses intermediate states, never the latest one."""
        told, told_at = None, 0.0
        while True:
            essence, message = await self._latest()
            quiet = time.monotonic() - told_at >= HEARTBEAT
            if essence != told or quiet:
                yield message if essence != told else COMMENT
                told, told_at = essence, time.monotonic()
            await asyncio.sleep(FRESH)

    async def _latest(self) -> tuple[Any, bytes]:
        """The state without what changes with the time alone, and its message; found once for all listeners."""
        try:
            seen = await self.overview()
        except StoreError as error:
            return str(error), _message("trouble", {"error": str(error)})
        if self._news[0] is not seen:
            state = seen.as_json()
            self._news = seen, _timeless(state), _message("overview", state)
        return self._news[1:]


def _timeless(value: Any) -> Any:
    """The same without values that change only because time passes."""
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _OF_TIME}
    return [_timeless(item) for item in value] if isinstance(value, list) else value
