"""Keep the locks of live workers from running out, so that short locks and long jobs go together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from supervisor.domain.liveness import Signs, Verdict, judge
from supervisor.domain.vigil import renewal_interval
from supervisor.maintenance.roster import Roster, pool_of
from supervisor.store.base import Chores
from supervisor.system.kernel import cpu_and_state
from supervisor.system.scoreboard import Snapshot


@dataclass(frozen=True, slots=True)
class LockTimes:
    """Of one pool, in seconds."""

    lock_time: float
    heartbeat_timeout: float


@dataclass(frozen=True, slots=True)
class Renewed:
    locks: int = 0
    withheld: int = 0


class Renewer:
    """Renews what has used up a third of its time, unless its worker is stopped or stuck."""

    def __init__(self, chores: Chores, roster: Roster, pools: Mapping[str, LockTimes]) -> None:
        self._chores = chores
        self._roster = roster
        self._pools = pools
        self._late: dict[str, Signs] = {}
        self.every = renewal_interval(min((times.lock_time for times in pools.values()), default=60.0))

    def run_once(self, now: float) -> Renewed:
        """`now` is Unix seconds."""
        owners: dict[float, list[str]] = {}
        withheld = 0
        for _, worker in self._roster.workers():
            times = self._pools.get(pool_of(worker.name))
            if times is None or not (worker.claims or worker.job):
                continue
            if self._verdict(worker, times.heartbeat_timeout) in (Verdict.STOPPED, Verdict.STUCK):
                withheld += 1
            else:
                owners.setdefault(times.lock_time, []).append(worker.incarnation)
        locks = sum(
            self._chores.renew(names, now + lock_time * 2 / 3, now + lock_time) for lock_time, names in owners.items()
        )
        return Renewed(locks, withheld)

    def _verdict(self, worker: Snapshot, heartbeat_timeout: float) -> Verdict:
        at = time.monotonic()
        if at - worker.beat < heartbeat_timeout:
            self._late.pop(worker.incarnation, None)
            return Verdict.WELL
        cpu, state = cpu_and_state(worker.pid)
        signs = Signs(at, worker.beat, cpu, state)
        return judge(signs, self._late.setdefault(worker.incarnation, signs), heartbeat_timeout)
