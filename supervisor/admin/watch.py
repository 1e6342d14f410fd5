"""The overview, read once for all requests at about the same time, and sent to listeners."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from supervisor.admin.chart_data import PERIODS, ChartData, Period
from supervisor.admin.store_executor import StoreExecutor
from supervisor.domain.errors import StoreError
from supervisor.domain.history import Minute, minute_of
from supervisor.domain.text import json_safe
from supervisor.ops.status import CostCache, Costs, gather
from supervisor.ops.views import Overview

FRESH = 1.0  # seconds for which an overview is reused
HEARTBEAT = 15.0  # seconds of silence after which a listener gets a comment
LISTENERS = 50  # at most

# Values that change only because time passes; a client can update them itself.
_OF_TIME = {"time", "running_for", "beat_age", "oldest_age", "next_due_in", "next_in"}


class TooManyListeners(Exception):
    """The maximum number of listeners is reached."""


class Watch:
    """Reads the overview on request. Without requests and listeners, nothing is read and no timer runs."""

    def __init__(self, executor: StoreExecutor) -> None:
        self._executor = executor
        self._guard = asyncio.Lock()
        self._costs = Costs()
        self._charted: dict[Period, CostCache[list[Minute]]] = {period: CostCache(40) for period in PERIODS.values()}
        self._seen: Overview | None = None
        self._at = 0.0
        self._listeners: set[Listener] = set()
        self._telling: asyncio.Task[None] | None = None

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

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    def join(self) -> Listener:
        """Add a listener, until it calls `leave`. Raises TooManyListeners."""
        if len(self._listeners) >= LISTENERS:
            raise TooManyListeners(f"there are already {LISTENERS} listeners, which is the maximum")
        listener = Listener()
        self._listeners.add(listener)
        if self._telling is not None:
            self._telling.cancel()  # restart, so that the new listener gets the state immediately
        self._telling = asyncio.get_running_loop().create_task(self._tell())
        return listener

    def leave(self, listener: Listener) -> None:
        self._listeners.discard(listener)
        if not self._listeners and self._telling is not None:
            self._telling.cancel()
            self._telling = None

    async def _tell(self) -> None:
        """Read the overview while there are listeners, and notify them when more than the time has changed."""
        while True:
            try:
                event, state = "overview", json_safe((await self.overview()).as_json())
            except StoreError as error:
                event, state = "trouble", {"error": json_safe(str(error))}
            essence = event, _timeless(state)
            news = _message(event, state)
            for listener in self._listeners:
                listener.tell(essence, news)
            await asyncio.sleep(FRESH)


class Listener:
    """A client of the event stream. A slow client misses intermediate states, never the latest one."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._essence: Any = None
        self._news = b""

    def tell(self, essence: Any, news: bytes) -> None:
        if essence != self._essence:
            self._essence, self._news = essence, news
            self._called.set()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events, without end."""
        while True:
            try:
                await asyncio.wait_for(self._called.wait(), HEARTBEAT)
            except TimeoutError:
                yield b": still here\n\n"
            else:
                self._called.clear()
                yield self._news


def _timeless(value: Any) -> Any:
    """The same without values that change only because time passes."""
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _OF_TIME}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _message(event: str, data: Any) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n".encode()
