"""Take back jobs whose locks expired: the last resort, for owners that nobody here can judge."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from supervisor.domain.job import Claim
from supervisor.domain.policy import JobPolicy, settle_expired
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Chores, Expired
from supervisor.telemetry import events

_BOUND = 500  # rows a pass
_PROMPT = 0.5  # seconds: a write that takes longer says that owners may not have been able to renew


@dataclass(frozen=True, slots=True)
class Reclaimed:
    jobs: int = 0
    watched: int = 0


class Reclaimer:
    """A row is lost to its owner only after it has been seen expired and unchanged for `patience` seconds
    of our own monotonic clock, during which writing was possible. So neither a jump of the wall clock nor
    a suspend nor a blocked database moves a lock.
    """

    def __init__(self, chores: Chores, lock_time: float) -> None:
        self._chores = chores
        # Twice a renewal interval: an owner that could renew again has done so by then.
        self.patience = max(0.4, lock_time / 3)
        self.every = self.patience / 4
        self._seen: dict[Expired, float] = {}
        self._last = time.monotonic()
        self._log = events()

    def run_once(self, now: float) -> Reclaimed:
        """`now` is Unix seconds."""
        rows = self._chores.expired(now, _BOUND)
        if not rows:
            self._seen.clear()
            return Reclaimed()
        began = time.monotonic()
        if not self._chores.writable() or time.monotonic() - began > _PROMPT or began - self._last > self.patience * 3:
            # Owners may have been unable to renew, or we ourselves were not looking: start again.
            self._seen.clear()
        self._last = at = time.monotonic()
        self._seen = {row: self._seen.get(row, at) for row in rows}
        ripe = [row for row, first in self._seen.items() if at - first >= self.patience]
        taken = sum(self._take(row, now) for row in ripe)
        return Reclaimed(taken, len(rows) - taken)

    def _take(self, row: Expired, now: float) -> bool:
        policy = self._policy_of(row.owner)

        def settle(claim: Claim, owner: str) -> Settlement:
            return settle_expired(claim, owner, policy, random.random())

        taken = self._chores.reclaim(row, settle, now)
        if taken:
            self._log.warning("lock_reclaimed", job=row.job_id, owner=row.owner or "nobody")
        return taken

    def _policy_of(self, owner: str) -> JobPolicy:
        record = self._chores.worker(owner) if owner else None
        return JobPolicy.decode(record.policy) if record else JobPolicy()
