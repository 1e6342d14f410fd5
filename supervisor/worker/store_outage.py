"""While the database is unavailable a worker waits, longer each time, and reports why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.store.base import Claims, Engine, WorkerRecord
from supervisor.system.slot import Slot
from supervisor.worker.counting import Counter
from supervisor.worker.wakeups import Wakeups

_FIRST, _MOST = 0.05, 5.0  # seconds between attempts


class StoreOutage:
    """`on` from the first error until `over`."""

    def __init__(self, slot: Slot, counter: Counter, wakeups: Wakeups, log: Any) -> None:
        self._slot = slot
        self._counter = counter
        self._wakeups = wakeups
        self._log = log
        self._pause = 0.0

    @property
    def on(self) -> bool:
        return self._pause > 0.0

    def wait(self, error: StoreError) -> None:
        """Wait until the next attempt, or a signal."""
        self._counter.store_failed(error)
        if not self._pause:
            self._log.error("store_failed", error=str(error))
        self._slot.work.forget_progress()
        self._slot.tell(str(error))
        self._pause = min(max(self._pause * 2, _FIRST), _MOST)
        self._wakeups.pause(self._pause)

    def over(self) -> None:
        if self._pause:
            self._pause = 0.0
            self._slot.tell("")
            self._log.info("store_recovered")


def registered(engine: Engine, record: WorkerRecord, outage: StoreOutage, leaving: Callable[[], bool]) -> Claims:
    """A store that knows the worker. Waits for an unavailable database, since another start would not help.

    Raises StoreError if the worker is to exit first.
    """
    while True:
        try:
            store = _registered(engine, record)
        except StoreError as error:
            if leaving():
                raise
            outage.wait(error)
        else:
            outage.over()
            return store


def _registered(engine: Engine, record: WorkerRecord) -> Claims:
    store = engine.claims()
    try:
        store.register(record)
    except StoreError:
        store.close()
        raise
    return store
