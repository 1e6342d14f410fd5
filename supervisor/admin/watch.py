"""The state of everything, looked at once for all who ask at about the same time."""

from __future__ import annotations

import asyncio
import time

from supervisor.admin.desk import Desk
from supervisor.status import Overview, gather

FRESH = 1.0  # seconds for which a look is good enough


class Watch:
    """Nobody asks: nothing is looked at."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._guard = asyncio.Lock()
        self._seen: Overview | None = None
        self._at = 0.0

    async def overview(self) -> Overview:
        """The state, at most FRESH seconds old. Raises StoreError if the database cannot be used."""
        async with self._guard:
            if self._seen is None or time.monotonic() - self._at > FRESH:
                self._seen = await self._desk.ask(lambda operations: gather(self._desk.engine, operations))
                self._at = time.monotonic()
            return self._seen
