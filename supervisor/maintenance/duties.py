"""Which duties a maintainer has, in which order, and what each of them is given."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from supervisor.domain.alerts import Alert
from supervisor.domain.duty import Duty, Needs
from supervisor.domain.schedule import Schedule
from supervisor.maintenance.alerts import RaiseAlert, Sources
from supervisor.maintenance.deaths import Counter, Deaths
from supervisor.maintenance.finished_jobs import Pruner, RedrivePolicy, Redriver
from supervisor.maintenance.history import HistoryRecorder
from supervisor.maintenance.lease import LeaseRenewal, publish
from supervisor.maintenance.locks import LockTimes, Reclaimer, Renewer
from supervisor.maintenance.recovery import Recovery, StartUp
from supervisor.maintenance.reports import (
    BurstWatch,
    ControlWatch,
    DepthGauge,
    Poller,
    Send,
    cancel_requests,
    unhandled_types,
)
from supervisor.maintenance.schedules import ClockWatch, FireSchedule
from supervisor.maintenance.waking import CommitWatch, Waker
from supervisor.store.base import Engine, JobSelector, MaintenanceStore, SupervisorRecord
from supervisor.system.scoreboard import Scoreboard, counters_of, run_logs_of
from supervisor.telemetry import events


class PoolInfo(NamedTuple):
    """What the maintainer needs to know of one pool. `wake` is the eventfd on which its idle workers sleep."""

    wanted: JobSelector
    wake: int
    locks: LockTimes
    redrive: RedrivePolicy


class Orders(NamedTuple):
    """The instructions for one maintainer. Retentions are seconds, None means forever.

    `leaving` are pools that a reload has removed: their workers get no more jobs, but finish the ones they have.
    """

    record: SupervisorRecord
    pool_infos: Mapping[str, PoolInfo]
    leaving: Mapping[str, LockTimes]
    keep_done: float | None
    keep_failed: float | None
    schedules: tuple[Schedule, ...]
    alerts: tuple[Alert, ...]
    burst: bool
    since: float  # Unix seconds: when the supervisor started


class Duties:
    """`start_up` runs alone until it is done; `all` are the others, in the order in which they run when several are
    due. The rest are those of them that the maintainer must know one by one; without leases there is no `lease`.
    """

    def __init__(
        self, orders: Orders, engine: Engine, store: MaintenanceStore, board: Scoreboard, counter: Counter, send: Send
    ) -> None:
        gate, record = board.gate, orders.record
        self.watch = CommitWatch(engine.changes())
        self.deaths = Deaths(store.locks, run_logs_of(board.path), counter, send)
        self.history = HistoryRecorder(store.history, store.backlog, record.id, counters_of(board.path))
        self.lease: LeaseRenewal | None = None
        if lease_time := engine.ownership.lease_time:
            gate.needed = 1
            self.lease = LeaseRenewal(store.registry, record, gate, lease_time, lambda: publish(board))
        controls = ControlWatch(store.controls, orders.pool_infos.keys(), record.host, gate, send)
        first: list[Duty] = [controls] if self.lease is None else [self.lease, controls]
        recovery = Recovery(store.registry, store.locks, record.id, counter)
        self.start_up = StartUp(store.registry, record, recovery, send, first)
        pools = {name: info.wanted for name, info in orders.pool_infos.items()}
        types = tuple(sorted({type_ for wanted in pools.values() for type_ in wanted.types}))
        locks = {name: info.locks for name, info in orders.pool_infos.items()}
        shortest = min((times.lock_time for times in locks.values()), default=60.0)
        wakes = {name: (info.wanted, info.wake) for name, info in orders.pool_infos.items()}
        self.waker = Waker(store.backlog, board, wakes, self.watch, gate.is_open)
        renewer = Renewer(store.locks, board, locks | dict(orders.leaving))
        of_engine = store.duties(events(process="maintainer"))
        self.all: list[Duty] = [
            *first,
            self.deaths,
            *(duty for duty in of_engine if duty.needs is Needs.NOTHING),  # checks that the database is there
            self.watch,
            self.waker,
            DepthGauge(store.backlog, pools, send, gate.is_open),
            renewer,
            Poller("cancels", lambda: cancel_requests(store.controls, record.id), send),
            Poller("unhandled types", lambda: unhandled_types(store.backlog, types, store.registry), send),
            ClockWatch(store.backlog),
        ]
        if orders.burst:  # it ends when there is nothing left to do
            wanted = tuple(pools.values())
            self.all.append(BurstWatch(store.backlog, store.locks, board, wanted, record.id, orders.since, send))
        else:
            self.all += _enqueuing(orders, store, pools, board)
        self.all += [
            recovery,
            Reclaimer(store.locks, store.registry, shortest, counter=counter, renewed=lambda: renewer.renewed),
            self.history,
            *(duty for duty in of_engine if duty.needs is not Needs.NOTHING),
            Pruner(store.finished, orders.keep_done, orders.keep_failed),
        ]


def _enqueuing(
    orders: Orders, store: MaintenanceStore, pools: Mapping[str, JobSelector], board: Scoreboard
) -> Iterator[Duty]:
    """Those that bring new jobs, and failed ones again."""

    def broken_pools() -> dict[str, str]:
        """What the supervisor shows of them on the scoreboard."""
        shown = board.supervisor_status().get("pools", {})
        return {name: str(pool.get("problem", "")) for name, pool in shown.items() if pool.get("broken")}

    alerts, schedules = store.finished.alerts, store.schedules
    sources = Sources(alerts, store.backlog, schedules, pools, orders.schedules, broken_pools, orders.record.host)
    for alert in orders.alerts:  # before the schedules: they would move on a time that was missed
        yield RaiseAlert(alert, sources)
    for schedule in orders.schedules:
        yield FireSchedule(schedules, schedule)
    redrives = [info.redrive for info in orders.pool_infos.values() if info.redrive.every > 0]
    if redrives:
        yield Redriver(store.finished, redrives)
