"""The locks of claims: renewed for live workers, and reclaimed when they have expired."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Container, Mapping

from supervisor.domain.duty import Duty, Needs, Result
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
from supervisor.maintenance.deaths import OutcomeCounter
from supervisor.maintenance.orders import PoolOrders
from supervisor.maintenance.scheduler import ITEMS_BOUND, Items
from supervisor.store.base import ClaimLocks, Expired, Registry
from supervisor.system.kernel import cpu_and_state
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot, pool_of
from supervisor.telemetry import events


class Renewer(Duty):
    """Renews a lock when a third of its time is over, unless its worker is stopped or stuck.

    Locks of the same duration are renewed together; if that is refused, worker by worker.
    """

    name = "renewal of locks"
    needs = Needs.WRITING
    quiet = True

    def __init__(self, locks: ClaimLocks, board: Scoreboard, pools: Mapping[str, PoolOrders]) -> None:
        self._locks = locks
        self._board = board
        self._pools = pools
        self._late: dict[str, Signs] = {}
        self._items: Items[str] = Items("worker")
        self.renewed: frozenset[str] = frozenset()  # workers whose locks it renews, or tries to
        self.every = renewal_interval(min((pool.lock_time for pool in pools.values()), default=60.0))

    def run(self, now: float) -> Result:
        owners: dict[float, dict[str, str]] = {}  # incarnations and names, by how long the locks last
        for _, worker in self._board.present():
            pool = self._pools.get(pool_of(worker.name))
            if pool is not None and (worker.claims or worker.job) and self._works(worker, pool.heartbeat_timeout):
                owners.setdefault(pool.lock_time, {})[worker.incarnation] = worker.name
        self.renewed = frozenset(incarnation for workers in owners.values() for incarnation in workers)
        self._items.keep(self.renewed)
        # The shortest first: they are the most urgent.
        locks = sum(self._renew(workers, lock_time, now) for lock_time, workers in sorted(owners.items()))
        return Result(locks, problem=self._items.problem)

    def _renew(self, workers: Mapping[str, str], lock_time: float, now: float) -> int:
        times = now + lock_time * 2 / 3, now + lock_time
        sound, locks = [one for one in workers if not self._items.fails(one)], 0
        try:
            locks = self._locks.renew(sound, *times) if sound else 0
        except StoreUnavailable:
            raise
        except StoreError:
            sound = []
        rest = [one for one in workers if one not in sound]
        return locks + self._items.each(rest, lambda one: self._locks.renew([one], *times), workers.__getitem__).done

    def _works(self, worker: Snapshot, heartbeat_timeout: float) -> bool:
        at = time.monotonic()
        if at - worker.beat < heartbeat_timeout:
            self._late.pop(worker.incarnation, None)
            return True
        signs = Signs(at, worker.beat, *cpu_and_state(worker.pid))
        late = self._late[worker.incarnation] = first_late(self._late.get(worker.incarnation), signs)
        return judge(signs, late, heartbeat_timeout) not in (Verdict.STOPPED, Verdict.STUCK)


_ROWS_RECLAIMED = 500  # per run
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
        counter: OutcomeCounter | None = None,
        renewed: Callable[[], Container[str]] = tuple,
    ) -> None:
        """`renewed` are owners that this supervisor knows to be alive: if their locks were not renewed, the failure is
        its own.
        """
        self._locks = locks
        self._registry = registry
        self._counter = counter or OutcomeCounter()
        self._renewed = renewed
        self._clock = clock
        self.every = observation_time(lock_time) / 4
        self._nobodys = JobPolicy(lock_time=lock_time)  # of owners that are not registered: they renew nothing
        self._observer: LeaseObserver[Expired] = LeaseObserver(self.every)
        self._clocks = Clocks()
        self._items: Items[int] = Items("job", clock)

    def run(self, now: float) -> Result:
        """`now` is Unix seconds."""
        self._clocks.note(now, self._clock())
        # Failing ones come on top, so that they do not block those after them.
        found = self._locks.expired(now, _ROWS_RECLAIMED + len(self._items))
        self._items.keep({row.job_id for row in found})
        renewed = self._renewed()
        rows = [
            row
            for row in found
            if row.owner not in renewed and self._items.ready(row.job_id) and self._has_expired(row)
        ]
        began = self._clock()
        # Whether the database can be written without a long wait: then owners could renew, too.
        writable = not rows or (self._locks.writable() and self._clock() - began <= _PROMPT)
        self._observer = self._observer.look(rows, self._clock(), writable=writable)
        policies = {owner: self._policy_of(owner) for owner in {row.owner for row in rows}}

        def is_ripe(row: Expired) -> bool:
            """An owner with longer locks than ours renews them less often."""
            lock_time = max(self._nobodys.lock_time, policies[row.owner].lock_time)
            return self._observer.watched[row] >= observation_time(lock_time)

        ripe = {row.job_id: row for row in rows if is_ripe(row)}
        until = self._clock() + ITEMS_BOUND
        return self._items.each(ripe, lambda job: self._take(ripe[job], policies[ripe[job].owner], now), until=until)

    def _has_expired(self, row: Expired) -> bool:
        """A foreign claim is never renewed, so its real age counts."""
        age = self._clock() - self._clocks.steadily(row.claimed_at)
        return row.owner != "foreign" or age > row.expires_at - row.claimed_at

    def _take(self, row: Expired, policy: JobPolicy, now: float) -> bool:
        settlements: list[Settlement] = []

        def settle(claim: Claim, owner: str) -> Settlement:
            settlements.append(settle_expired(claim, owner, policy, random.random()))
            return settlements[-1]

        taken = self._locks.reclaim(row, settle, now)
        if taken:
            self._counter.row.reclaimed(1)
            self._counter.settled(settlements, len(settlements), now)
            events().warning("lock_reclaimed", job=row.job_id, owner=row.owner or "nobody")
        return taken

    def _policy_of(self, owner: str) -> JobPolicy:
        record = self._registry.worker(owner) if owner else None
        return JobPolicy.decode(record.policy) if record else self._nobodys
