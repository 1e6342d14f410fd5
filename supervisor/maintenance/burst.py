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
_RETRIES_WITHIN = 600.0  # seconds: the longest pause between two attempts, unless `retry.max` says otherwise


@dataclass(frozen=True, slots=True)
class BurstState(Result):
    over: bool
    pending: int
    failed: int


@dataclass(eq=False)
class BurstWatch(Duty):
    """A burst is over when nothing is due or running, and nothing is due for another attempt within ten minutes."""

    name = "burst"
    quiet = True

    backlog: Backlog
    locks: ClaimLocks
    slots: SlotReader
    pools: tuple[JobSelector, ...]
    own: str
    since: float
    send: Callable[[Message], None]
    admitted: Callable[[JobSelector], JobSelector] = lambda wanted: wanted

    def __post_init__(self) -> None:
        self._types = tuple(sorted({t for wanted in self.pools for t in wanted.types}))
        self.every = _PAUSE

    def run(self, now: float) -> BurstState:
        began = time.monotonic()
        rest, done = self.slots.at_rest()
        over = rest and not any(self._unfinished(wanted, now) for wanted in self.pools)
        over = over and not self.locks.has_claims(self.own)
        # No worker may have claimed anything in between.
        over = over and self.slots.at_rest() == (True, done)
        pending, failed = self.backlog.progress_of(self._types, self.since)
        self.send({"burst": {"over": over, "pending": pending, "failed": failed}})
        # Counting a long queue takes a while, and must not slow the workers down.
        self.every = max(_PAUSE, 20 * (time.monotonic() - began))
        return BurstState(over, pending, failed)

    def _unfinished(self, wanted: JobSelector, now: float) -> bool:
        return self.backlog.unfinished(self.admitted(wanted), now, _RETRIES_WITHIN)
