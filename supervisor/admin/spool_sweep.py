"""Removes the files of the spool that no job needs: see `system/spool.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from supervisor.admin.store_executor import StoreExecutor
from supervisor.admin.uploads import Uploads
from supervisor.domain.errors import StoreError
from supervisor.domain.spool import Label, Spooled, SpooledFile, grouped, may_go
from supervisor.store.base import Operations
from supervisor.telemetry import events

EVERY = 30.0  # seconds between two looks at the folder
_REST = 0.2  # while there is more to compare: others use the database, too
_MOST = 500  # files that are compared at once


class SpoolSweep:
    """Compares files with jobs, from the first to the last in the order of their tokens, and begins again.

    `keep_done` is seconds after the success of a job; None: as long as the job. Without files nothing is queried.
    """

    def __init__(self, uploads: Uploads, executor: StoreExecutor, keep_done: float | None) -> None:
        self._uploads = uploads
        self._executor = executor
        self._keep_done = keep_done
        self._reached = ""
        self._problem = ""
        self._log = events(process="admin")

    async def run(self) -> None:
        """Without end. What fails is tried again, and logged once."""
        while True:
            try:
                more = await self.look()
                self._problem = ""
            except StoreError as error:
                more = False
                if self._problem != str(error):
                    self._problem = str(error)
                    self._log.warning("spool_not_swept", error=self._problem, next_try_seconds=EVERY)
            await asyncio.sleep(_REST if more else EVERY)

    async def look(self) -> bool:
        """Compare some files, and return whether there are more. Raises StoreError."""
        lying = grouped(await self._uploads.within(self._uploads.spool.found))
        if not lying:
            return False
        now = await self._uploads.within(self._uploads.spool.now)
        active = self._uploads.active
        old = [one for one in lying if one.token > self._reached and not one.is_young(now) and one.token not in active]
        some = old[:_MOST]
        self._reached = some[-1].token if len(old) > _MOST else ""
        if some:
            await self._remove(some)
        return bool(self._reached)

    async def _remove(self, some: Sequence[Spooled]) -> None:
        going = [one for one in some if not one.body]
        labels = await self._uploads.within(self._labels, [one for one in some if one.body])
        files = {}
        for one, label in labels.items():
            if label is None:
                going.append(one)
            elif label.database == self._uploads.database:
                files[one.body] = (one, SpooledFile(one.body, label.type, label.unique_key))
        if files:
            named, then = await self._executor.ask(lambda operations: self._compared(operations, files))
            going += [
                one for body, (one, _) in files.items() if may_go(body in named, named.get(body), then, self._keep_done)
            ]
        for one in going:
            await self._uploads.within(self._uploads.spool.remove, one.names)
        if going:
            self._log.debug("spool_swept", files=len(going))

    def _labels(self, some: Sequence[Spooled]) -> Mapping[Spooled, Label | None]:
        return {one: Label.read(self._uploads.spool.label(one.token)) for one in some}

    def _compared(
        self, operations: Operations, files: Mapping[str, tuple[Spooled, SpooledFile]]
    ) -> tuple[Mapping[str, float | None], float]:
        """Which files jobs name, with the time of success, and the time by the clock of these."""
        return operations.backlog.spooled(file for _, file in files.values()), operations.statistics.now()
