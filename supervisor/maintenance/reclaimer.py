"""Take back jobs whose locks expired: the last resort, for owners that nobody here can judge."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.domain.clocks import Clocks
from supervisor.domain.job import Claim
from supervisor.domain.policy import JobPolicy, settle_expired
from supervisor.domain.settlement import Settlement
from supervisor.domain.vigil import Vigil, patience
from supervisor.maintenance.counting import Counter
from supervisor.store.base import Chores, Expired
from supervisor.telemetry import events

_BOUND = 500  # rows a pass
_PROMPT = 0.5  # seconds: a write that takes longer says that owners may not have been able to renew


@dataclass(frozen=True, slots=True)
class Reclaimed:
    jobs: int = 0
    watched: int = 0


class Reclaimer:
    """A row is lost to its owner only after it has been watched, expired and unchanged, for as long as two
    renewals take, on our own monotonic clock and while writing was possible. So neither a jump of the wall
    clock nor a suspend nor a blocked database moves a lock.
    """

    def __init__(
        self,
        chores: Chores,
        lock_time: float,
        clock: Callable[[], float] = time.monotonic,
        counter: Counter | None = None,
    ) -> None:
        self._chores = chores
        self._counter = counter or Counter()
        self._clock = clock
        self.patience = patience(lock_time)
        self.every = self.patience / 4
        self._nobodys = JobPolicy(lock_time=lock_time)  # who is not registered renews nothing
        self._vigil: Vigil[Expired] = Vigil(self.every)
        self._clocks = Clocks()
        self._log = events()

    def run_once(self, now: float) -> Reclaimed:
        """`now` is Unix seconds."""
        self._clocks.note(now, self._clock())
        rows = [row for row in self._chores.expired(now, _BOUND) if self._has_expired(row)]
        writable = not rows or self._can_write()
        self._vigil = self._vigil.look(rows, self._clock(), writable=writable)
        policies = {owner: self._policy_of(owner) for owner in {row.owner for row in rows}}
        taken = sum(self._take(row, policies[row.owner], now) for row in rows if self._ripe(row, policies[row.owner]))
        return Reclaimed(taken, len(rows) - taken)

    def _has_expired(self, row: Expired) -> bool:
        """A foreign claim is never renewed, so what counts is the time that it has really had."""
        age = self._clock() - self._clocks.steadily(row.claimed_at)
        return row.owner != "foreign" or age > row.expires_at - row.claimed_at

    def _can_write(self) -> bool:
        """Whether owners could, too: at once, or nearly so."""
        began = self._clock()
        return self._chores.writable() and self._clock() - began <= _PROMPT

    def _ripe(self, row: Expired, policy: JobPolicy) -> bool:
        """An owner with longer locks than ours renews them less often."""
        return self._vigil.watched[row] >= max(self.patience, patience(policy.lock_time))

    def _take(self, row: Expired, policy: JobPolicy, now: float) -> bool:
        settlements: list[Settlement] = []

        def settle(claim: Claim, owner: str) -> Settlement:
            settlements.append(settle_expired(claim, owner, policy, random.random()))
            return settlements[-1]

        taken = self._chores.reclaim(row, settle, now)
        if taken:
            self._counter.reclaimed(settlements, now)
            self._log.warning("lock_reclaimed", job=row.job_id, owner=row.owner or "nobody")
        return taken

    def _policy_of(self, owner: str) -> JobPolicy:
        record = self._chores.worker(owner) if owner else None
        return JobPolicy.decode(record.policy) if record else self._nobodys
