"""Renews the locks of live workers, so that locks can be short and jobs long."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreError, StoreUnavailable
from supervisor.domain.process_health import Signs, Verdict, first_late, judge
from supervisor.domain.recovery import renewal_interval
from supervisor.maintenance.items import Items
from supervisor.maintenance.slot_reader import SlotReader, pool_of
from supervisor.store.base import ClaimLocks
from supervisor.system.kernel import cpu_and_state
from supervisor.system.slot import Snapshot


class LockTimes(NamedTuple):
    """Of one pool, in seconds."""

    lock_time: float
    heartbeat_timeout: float


@dataclass(frozen=True, slots=True)
class Renewed(Result):
    locks: int = 0
    withheld: int = 0


class Renewer(Duty):
    """Renews a lock when a third of its time is over, unless its worker is stopped or stuck.

    Locks of the same duration are renewed together; if that is refused, worker by worker.
    """

    name = "renewal of locks"
    needs = Needs.WRITING
    quiet = True

    def __init__(self, locks: ClaimLocks, slots: SlotReader, pools: Mapping[str, LockTimes]) -> None:
        self._locks = locks
        self._slots = slots
        self._pools = pools
        self._late: dict[str, Signs] = {}
        self._failing: Items[str] = Items("worker")
        self.tended: frozenset[str] = frozenset()  # workers whose locks it renews, or tries to
        self.every = renewal_interval(min((times.lock_time for times in pools.values()), default=60.0))

    def run(self, now: float) -> Renewed:
        owners: dict[float, list[Snapshot]] = {}
        withheld = 0
        for worker in self._slots.workers():
            times = self._pools.get(pool_of(worker.name))
            if times is None or not (worker.claims or worker.job):
                continue
            if self._verdict(worker, times.heartbeat_timeout) in (Verdict.STOPPED, Verdict.STUCK):
                withheld += 1
            else:
                owners.setdefault(times.lock_time, []).append(worker)
        self.tended = frozenset(worker.incarnation for workers in owners.values() for worker in workers)
        self._failing.keep(self.tended)
        # The shortest first: they are the most urgent.
        locks = sum(self._renew(workers, lock_time, now) for lock_time, workers in sorted(owners.items()))
        return Renewed(locks, withheld, problem=self._failing.problem)

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
