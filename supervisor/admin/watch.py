"""The overview, read once for all requests at about the same time, and sent to those who listen to its changes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from supervisor.admin.charts import PERIODS, ChartData, Period
from supervisor.admin.store_executor import StoreExecutor
from supervisor.domain.errors import QueueError, StoreError
from supervisor.domain.history import Minute, minute_of
from supervisor.domain.text import json_safe
from supervisor.ops.status import CostCache, Costs, gather
from supervisor.ops.views import Overview

FRESH = 1.0  # seconds for which an overview is reused
HEARTBEAT = 15.0  # seconds of silence after which a listener gets a comment
COMMENT = b": still here\n\n"
LISTENERS = 50  # at most

# Values that change only because time passes; a client can update them itself.
_OF_TIME = {"time", "running_for", "beat_age", "oldest_age", "next_due_in", "next_in"}


class TooManyListeners(QueueError):
    """The maximum number of listeners is reached."""


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


class Watch:
    """Reads the overview on request. Without requests and listeners, nothing is read and no timer runs."""

    def __init__(self, executor: StoreExecutor) -> None:
        self.listeners = 0
        self._executor = executor
        self._guard = asyncio.Lock()
        self._costs = Costs()
        self._charted: dict[Period, CostCache[list[Minute]]] = {period: CostCache(40) for period in PERIODS.values()}
        self._seen: Overview | None = None
        self._at = 0.0
        self._news_guard = asyncio.Lock()
        self._news: tuple[Any, bytes] = (None, b"")
        self._news_at = 0.0

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
            lambda operations: self._charted[period].answer(
                lambda: operations.history.added_up(since, minute_of(now), period.step)
            )
        )
        return ChartData(rows, period, now)

    def listen(self) -> EventStream:
        """The overview as events: at once, and when more than the time has changed. Raises TooManyListeners."""
        if self.listeners >= LISTENERS:
            raise TooManyListeners(f"there are already {LISTENERS} listeners, which is the maximum")
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
        async with self._news_guard:
            if time.monotonic() - self._news_at >= FRESH:
                try:
                    event, state = "overview", json_safe((await self.overview()).as_json())
                except StoreError as error:
                    event, state = "trouble", {"error": json_safe(str(error))}
                data = json.dumps(state, ensure_ascii=False, allow_nan=False)
                self._news = (event, _timeless(state)), f"event: {event}\ndata: {data}\n\n".encode()
                self._news_at = time.monotonic()
            return self._news


def _timeless(value: Any) -> Any:
    """The same without values that change only because time passes."""
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _OF_TIME}
    return [_timeless(item) for item in value] if isinstance(value, list) else value
