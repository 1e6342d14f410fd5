"""Reclaims jobs whose locks have expired: the last resort, for owners that cannot be checked from here."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Moved, Needs
from supervisor.domain.job import Claim
from supervisor.domain.recovery import Clocks, JobPolicy, LeaseObserver, observation_time, settle_expired
from supervisor.domain.settlement import Settlement
from supervisor.maintenance.counting import Counter
from supervisor.maintenance.items import Items
from supervisor.store.base import ClaimLocks, Expired, Registry
from supervisor.telemetry import events

_ROWS = 500  # per run
_BOUND = 2.0  # seconds per run
_PROMPT = 0.5  # seconds: if a write takes longer, owners may not have been able to renew


@dataclass(frozen=True, slots=True)
class Reclaimed(Moved):
    watched: int = 0


class Reclaimer(Duty):
    """A lock is reclaimed only after it has been seen expired and unchanged for as long as two renewals take, on our
    own monotonic clock and while the database could be written. So neither a jump of the wall clock nor a suspend nor a
    blocked database takes a lock away.
    """

    name = "reclaiming of locks"
    needs = Needs.WRITING
    quiet = True

    def __init__(
        self,
        locks: ClaimLocks,
        registry: Registry,
        lock_time: float,
        clock: Callable[[], float] = time.monotonic,
        counter: Counter | None = None,
        tended: Callable[[], Container[str]] = tuple,
    ) -> None:
        """`tended` are owners that this supervisor knows to be alive: if their locks were not renewed, the failure is
        its own.
        """
        self._locks = locks
        self._registry = registry
        self._counter = counter or Counter()
        self._tended = tended
        self._clock = clock
        self.patience = observation_time(lock_time)
        self.every = self.patience / 4
        self._nobodys = JobPolicy(lock_time=lock_time)  # of owners that are not registered: they renew nothing
        self._observer: LeaseObserver[Expired] = LeaseObserver(self.every)
        self._clocks = Clocks()
        self._failing: Items[int] = Items("job", clock)
        self._log = events()

    def run(self, now: float) -> Reclaimed:
        """`now` is Unix seconds."""
        self._clocks.note(now, self._clock())
        # Failing ones come on top, so that they do not block those after them.
        found = self._locks.expired(now, _ROWS + len(self._failing))
        self._failing.keep({row.job_id for row in found})
        tended = self._tended()
        rows = [
            row
            for row in found
            if row.owner not in tended and self._failing.ready(row.job_id) and self._has_expired(row)
        ]
        writable = not rows or self._can_write()
        self._observer = self._observer.look(rows, self._clock(), writable=writable)
        policies = {owner: self._policy_of(owner) for owner in {row.owner for row in rows}}
        ripe = [row for row in rows if self._ripe(row, policies[row.owner])]
        taken, stop_by = 0, self._clock() + _BOUND
        for row in ripe:
            if self._clock() >= stop_by:
                return Reclaimed(taken, len(rows) - taken, problem=self._failing.problem, more=True)
            with self._failing.attempt(row.job_id):
                taken += self._take(row, policies[row.owner], now)
        return Reclaimed(taken, len(rows) - taken, problem=self._failing.problem)

    def _has_expired(self, row: Expired) -> bool:
        """A foreign claim is never renewed, so its real age counts."""
        age = self._clock() - self._clocks.steadily(row.claimed_at)
        return row.owner != "foreign" or age > row.expires_at - row.claimed_at

    def _can_write(self) -> bool:
        """Whether the database can be written without a long wait: then owners could renew, too."""
        began = self._clock()
        return self._locks.writable() and self._clock() - began <= _PROMPT

    def _ripe(self, row: Expired, policy: JobPolicy) -> bool:
        """An owner with longer locks than ours renews them less often."""
        return self._observer.watched[row] >= max(self.patience, observation_time(policy.lock_time))

    def _take(self, row: Expired, policy: JobPolicy, now: float) -> bool:
        settlements: list[Settlement] = []

        def settle(claim: Claim, owner: str) -> Settlement:
            settlements.append(settle_expired(claim, owner, policy, random.random()))
            return settlements[-1]

        taken = self._locks.reclaim(row, settle, now)
        if taken:
            self._counter.reclaimed(settlements, now)
            self._log.warning("lock_reclaimed", job=row.job_id, owner=row.owner or "nobody")
        return taken

    def _policy_of(self, owner: str) -> JobPolicy:
        record = self._registry.worker(owner) if owner else None
        return JobPolicy.decode(record.policy) if record else self._nobodys
