"""The locks of claims: renewed for live workers, and reclaimed when they have expired."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Mapping
from typing import NamedTuple

from supervisor.domain.duty import Duty, Needs, Result, moved
from supervisor.domain.errors import StoreError, StoreUnavailable
from supervisor.domain.job import Claim
from supervisor.domain.process_health import Signs, Verdict, first_late, judge
from supervisor.domain.recovery import (
    Clocks,
    JobPolicy,
    LeaseObserver,
    observation_time,
    renewal_interval,
    settle_expired,
)
from supervisor.domain.settlement import Settlement
from supervisor.maintenance.deaths import Counter
from supervisor.maintenance.scheduler import FailedItems
from supervisor.maintenance.waking import pool_of, present_workers
from supervisor.store.base import ClaimLocks, Expired, Registry
from supervisor.system.kernel import cpu_and_state
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot
from supervisor.telemetry import events


class LockTimes(NamedTuple):
    """Of one pool, in seconds."""

    lock_time: float
    heartbeat_timeout: float


class Renewer(Duty):
    """Renews a lock when a third of its time is over, unless its worker is stopped or stuck.

    Locks of the same duration are renewed together; if that is refused, worker by worker.
    """

    name = "renewal of locks"
    needs = Needs.WRITING
    quiet = True

    def __init__(self, locks: ClaimLocks, board: Scoreboard, pools: Mapping[str, LockTimes]) -> None:
        self._locks = locks
        self._board = board
        self._pools = pools
        self._late: dict[str, Signs] = {}
        self._failing: FailedItems[str] = FailedItems("worker")
        self.renewed: frozenset[str] = frozenset()  # workers whose locks it renews, or tries to
        self.every = renewal_interval(min((times.lock_time for times in pools.values()), default=60.0))

    def run(self, now: float) -> Result:
        owners: dict[float, list[Snapshot]] = {}
        for _, worker in present_workers(self._board):
            times = self._pools.get(pool_of(worker.name))
            if times is None or not (worker.claims or worker.job):
                continue
            if self._verdict(worker, times.heartbeat_timeout) not in (Verdict.STOPPED, Verdict.STUCK):
                owners.setdefault(times.lock_time, []).append(worker)
        self.renewed = frozenset(worker.incarnation for workers in owners.values() for worker in workers)
        self._failing.keep(self.renewed)
        # The shortest first: they are the most urgent.
        locks = sum(self._renew(workers, lock_time, now) for lock_time, workers in sorted(owners.items()))
        return Result(locks, problem=self._failing.problem)

    def _renew(self, workers: list[Snapshot], lock_time: float, now: float) -> int:
        times = now + lock_time * 2 / 3, now + lock_time
        sound = [worker for worker in workers if not self._failing.fails(worker.incarnation)]
        try:
            locks = self._locks.renew([worker.incarnation for worker in sound], *times) if sound else 0
        except StoreUnavailable:
            raise
        except StoreError:
            sound, locks = [], 0
        for worker in workers:
            if worker not in sound and self._failing.ready(worker.incarnation):
                with self._failing.attempt(worker.incarnation, worker.name):
                    locks += self._locks.renew([worker.incarnation], *times)
        return locks

    def _verdict(self, worker: Snapshot, heartbeat_timeout: float) -> Verdict:
        at = time.monotonic()
        if at - worker.beat < heartbeat_timeout:
            self._late.pop(worker.incarnation, None)
            return Verdict.WELL
        signs = Signs(at, worker.beat, *cpu_and_state(worker.pid))
        late = self._late[worker.incarnation] = first_late(self._late.get(worker.incarnation), signs)
        return judge(signs, late, heartbeat_timeout)


_ROWS_RECLAIMED = 500  # per run
_BOUND = 2.0  # seconds per run
_PROMPT = 0.5  # seconds: if a write takes longer, owners may not have been able to renew


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
        renewed: Callable[[], Container[str]] = tuple,
    ) -> None:
        """`renewed` are owners that this supervisor knows to be alive: if their locks were not renewed, the failure is
        its own.
        """
        self._locks = locks
        self._registry = registry
        self._counter = counter or Counter()
        self._renewed = renewed
        self._clock = clock
        self.every = observation_time(lock_time) / 4
        self._nobodys = JobPolicy(lock_time=lock_time)  # of owners that are not registered: they renew nothing
        self._observer: LeaseObserver[Expired] = LeaseObserver(self.every)
        self._clocks = Clocks()
        self._failing: FailedItems[int] = FailedItems("job", clock)

    def run(self, now: float) -> Result:
        """`now` is Unix seconds."""
        self._clocks.note(now, self._clock())
        # Failing ones come on top, so that they do not block those after them.
        found = self._locks.expired(now, _ROWS_RECLAIMED + len(self._failing))
        self._failing.keep({row.job_id for row in found})
        renewed = self._renewed()
        rows = [
            row
            for row in found
            if row.owner not in renewed and self._failing.ready(row.job_id) and self._has_expired(row)
        ]
        writable = not rows or self._can_write()
        self._observer = self._observer.look(rows, self._clock(), writable=writable)
        policies = {owner: self._policy_of(owner) for owner in {row.owner for row in rows}}
        ripe = [row for row in rows if self._ripe(row, policies[row.owner])]
        taken, stop_by = 0, self._clock() + _BOUND
        for row in ripe:
            if self._clock() >= stop_by:
                return moved(taken, problem=self._failing.problem, more=True)
            with self._failing.attempt(row.job_id):
                taken += self._take(row, policies[row.owner], now)
        return moved(taken, problem=self._failing.problem)

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
        return self._observer.watched[row] >= observation_time(max(self._nobodys.lock_time, policy.lock_time))

    def _take(self, row: Expired, policy: JobPolicy, now: float) -> bool:
        settlements: list[Settlement] = []

        def settle(claim: Claim, owner: str) -> Settlement:
            settlements.append(settle_expired(claim, owner, policy, random.random()))
            return settlements[-1]

        taken = self._locks.reclaim(row, settle, now)
        if taken:
            self._counter.reclaimed(settlements, now)
            events().warning("lock_reclaimed", job=row.job_id, owner=row.owner or "nobody")
        return taken

    def _policy_of(self, owner: str) -> JobPolicy:
        record = self._registry.worker(owner) if owner else None
        return JobPolicy.decode(record.policy) if record else self._nobodys
