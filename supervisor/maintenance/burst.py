"""Reports the progress of a burst, and when it is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Result
from supervisor.maintenance.slot_reader import SlotReader
from supervisor.store.base import Backlog, ClaimLocks, JobSelector
from supervisor.system.channel import Message

_PAUSE = 0.1  # seconds between two checks


@dataclass(frozen=True, slots=True)
class BurstState(Result):
    over: bool
    pending: int
    failed: int


class BurstWatch(Duty):
    """A burst is over when nothing is due, running or delayed for another attempt."""

    name = "burst"
    quiet = True

    def __init__(
        self,
        backlog: Backlog,
        locks: ClaimLocks,
        slots: SlotReader,
        pools: tuple[JobSelector, ...],
        own: str,
        since: float,
        send: Callable[[Message], None],
    ) -> None:
        self._backlog = backlog
        self._locks = locks
        self._slots = slots
        self._pools = pools
        self._types = tuple(sorted({t for wanted in pools for t in wanted.types}))
        self._own = own
        self._since = since
        self._send = send
        self.every = _PAUSE

    def run(self, now: float) -> BurstState:
        began = time.monotonic()
        rest, done = self._slots.at_rest()
        over = rest and not any(self._backlog.unfinished(wanted, now) for wanted in self._pools)
        over = over and not self._locks.has_claims(self._own)
        # No worker may have claimed anything in between.
        over = over and self._slots.at_rest() == (True, done)
        pending, failed = self._backlog.progress_of(self._types, self._since)
        self._send({"burst": {"over": over, "pending": pending, "failed": failed}})
        # Counting a long queue takes a while, and must not slow the workers down.
        self.every = max(_PAUSE, 20 * (time.monotonic() - began))
        return BurstState(over, pending, failed)
