"""Whether the job of a request would be run, before it is enqueued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection

from supervisor.admin.store_executor import StoreExecutor
from supervisor.domain.errors import StoreError
from supervisor.ops.commands import UnknownType
from supervisor.ops.serving import NotServed, Serving, serving, why_untaken
from supervisor.store.base import Filter, Operations

FRESH = 1.0  # seconds for which a look is reused
PATIENCE = 1.0  # seconds that a request for a known type waits for a look


class Availability:
    """Of the pools, for all requests of one admin process. `types` are those of its configuration.

    Requests for one of these share a look a second. No request is refused by a look that is older than itself.
    """

    def __init__(self, executor: StoreExecutor, types: Collection[str]) -> None:
        self._executor = executor
        self._types = frozenset(types)
        self._guard = asyncio.Lock()
        self._seen: Serving | None = None
        self._at = 0.0  # monotonic seconds

    async def require(self, type_: str, unique_key: str | None) -> None:
        """Raises UnknownType if no pool takes the type; NotServed if one does and none can run its jobs; StoreError.
        An earlier request with the same unique key has a job already: it is answered with that.
        """
        began = time.monotonic()
        if type_ not in self._types:
            await self._require_taken(type_, unique_key)
        try:
            async with asyncio.timeout(PATIENCE):
                if (await self._look(began - FRESH)).obstacle(type_) is None:
                    return
                found = (await self._look(began)).obstacle(type_)
        except (StoreError, TimeoutError):
            return  # the insert will tell
        if found is not None and not await self._is_there(type_, unique_key):
            raise NotServed(found)

    async def _require_taken(self, type_: str, unique_key: str | None) -> None:
        if (await self._look(time.monotonic() - FRESH)).takes(type_):
            return
        why = await self._executor.ask(lambda operations: why_untaken(operations, type_, self._types))
        if why and not await self._is_there(type_, unique_key):
            raise UnknownType([why])

    async def _look(self, since: float) -> Serving:
        """At most as old as that."""
        async with self._guard:
            if self._seen is None or self._at < since:
                at = time.monotonic()
                self._seen = await self._executor.ask(serving)
                self._at = at
            return self._seen

    async def _is_there(self, type_: str, unique_key: str | None) -> bool:
        if unique_key is None:
            return False
        wanted = Filter(types=(type_,), unique_key=unique_key)

        def look(operations: Operations) -> bool:
            return bool(operations.jobs.page(wanted, before=None, limit=1).jobs)

        return await self._executor.ask(look)
