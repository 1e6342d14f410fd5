"""The maintainer: the one process that maintains the database. It starts no processes, and ends only those that a
dead supervisor has left.

Its first duty is start-up recovery; the supervisor forks no worker before it is reported done.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import NamedTuple

from supervisor.domain.alerts import Alert
from supervisor.domain.duty import Duty, Needs
from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.schedule import Schedule
from supervisor.maintenance.alerts import RaiseAlert, Sources
from supervisor.maintenance.deaths import Counter, DeathReport, Deaths
from supervisor.maintenance.finished_jobs import Pruner, RedrivePolicy, Redriver
from supervisor.maintenance.history import HistoryRecorder
from supervisor.maintenance.lease import HostWatch, LeaseRenewal, publish
from supervisor.maintenance.locks import LockTimes, Reclaimer, Renewer
from supervisor.maintenance.recovery import Recovery, StartUp
from supervisor.maintenance.reports import (
    BurstWatch,
    DepthGauge,
    cancel_poller,
    control_poller,
    failing_duties,
    trouble_of,
    unhandled_types,
)
from supervisor.maintenance.scheduler import Failing, Scheduler, error_text
from supervisor.maintenance.schedules import ClockWatch, FireSchedule
from supervisor.maintenance.waking import CommitWatch, SlotReader, Waker
from supervisor.store.base import Engine, JobSelector, SupervisorRecord
from supervisor.system import counters, signals
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import MAINTAINER_SLOT, Scoreboard
from supervisor.telemetry import events

BEAT = 1.0  # seconds between two heartbeats at most
_COARSE = 0.01  # seconds; shorter waits need a better resolution than milliseconds


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
    vacuum: bool
    since: float  # Unix seconds: when the supervisor started


class Maintainer:
    """Created in its own process. `run` returns when the supervisor is gone or asks for it."""

    def __init__(self, orders: Orders, engine: Engine, channel: Channel, board: Scoreboard) -> None:
        self._orders = orders
        self._channel = channel
        self._board = board
        self._slot = board.slot(MAINTAINER_SLOT)
        self._log = events(process="maintainer")
        self._sent_trouble = trouble_of(None)
        self._sent_failing: dict[str, Failing] | None = None
        self._leaving = False
        self._store = store = engine.maintenance()
        self._feed = engine.changes()
        self._counter = Counter(counters.shared(board.counters, MAINTAINER_SLOT))
        self._watch = CommitWatch(self._feed)
        self._deaths = Deaths(store.locks, board.run_logs, self._counter, channel.send)
        wakes = {name: (info.wanted, info.wake) for name, info in orders.pool_infos.items()}
        self._slots = SlotReader(board)
        self._gate = gate = board.gate
        self._waker = Waker(store.backlog, self._slots, wakes, self._watch, self._admitted)
        self._recovery = Recovery(store.registry, store.locks, orders.record.id, self._counter)
        self._history = HistoryRecorder(store.history, store.backlog, orders.record.id, board.counters)
        self._of_host: list[Duty] = [HostWatch(store.controls, orders.record.host, gate)]
        self._lease: LeaseRenewal | None = None
        if lease_time := engine.ownership.lease_time:
            gate.need_lease()
            self._lease = LeaseRenewal(store.registry, orders.record, gate, lease_time, lambda: publish(board))
            self._of_host.insert(0, self._lease)
        self._start_up = StartUp(store.registry, orders.record, self._recovery, channel.send, self._of_host)
        self._starting = self._scheduler(self._start_up)
        self._scheduler_of_duties = self._scheduler(*self._duties())

    def _duties(self) -> Iterator[Duty]:
        """In the order in which they run when several are due."""
        orders, store, send = self._orders, self._store, self._channel.send
        slots = self._slots
        pool_infos = orders.pool_infos
        wanted = {name: info.wanted for name, info in pool_infos.items()}
        types = tuple(sorted({t for w in wanted.values() for t in w.types}))
        locks = {name: info.locks for name, info in pool_infos.items()}
        redrives = [info.redrive for info in pool_infos.values() if info.redrive.every > 0]

        of_engine = store.duties(self._log, vacuum=orders.vacuum)

        yield from self._of_host
        yield self._deaths
        yield from (duty for duty in of_engine if duty.needs is Needs.NOTHING)  # checks that the database is there
        yield self._watch
        yield self._waker
        yield DepthGauge(store.backlog, wanted, send, self._admitted)
        renewer = Renewer(store.locks, slots, locks | dict(orders.leaving))
        yield renewer
        yield control_poller(store.controls, wanted, orders.record.host, send)
        yield cancel_poller(store.controls, orders.record.id, send)
        yield unhandled_types(store.backlog, types, send, store.registry)
        yield ClockWatch(store.backlog)
        if orders.burst:  # it ends when there is nothing left to do
            pools = tuple(wanted.values())
            own, since = orders.record.id, orders.since
            yield BurstWatch(store.backlog, store.locks, slots, pools, own, since, send, self._admitted)
        else:
            alert_sources = Sources(
                store.finished.alerts,
                store.backlog,
                store.schedules,
                wanted,
                orders.schedules,
                self._broken_pools,
                orders.record.host,
            )
            for alert in orders.alerts:  # before the schedules: they would move on a time that was missed
                yield RaiseAlert(alert, alert_sources)
            for schedule in orders.schedules:
                yield FireSchedule(store.schedules, schedule)
            if redrives:
                yield Redriver(store.finished, redrives)
        yield self._recovery
        shortest = min((times.lock_time for times in locks.values()), default=60.0)
        yield Reclaimer(store.locks, store.registry, shortest, counter=self._counter, renewed=lambda: renewer.renewed)
        yield self._history
        yield from (duty for duty in of_engine if duty.needs is not Needs.NOTHING)
        yield Pruner(store.finished, orders.keep_done, orders.keep_failed)

    def _admitted(self, wanted: JobSelector) -> JobSelector | None:
        """What may be claimed of this: not the types that are paused on this host; None while nothing may be."""
        return wanted.narrowed(self._gate.unpaused(wanted.types)) if self._gate.is_open() else None

    def _broken_pools(self) -> dict[str, str]:
        """What the supervisor shows of them on the scoreboard."""
        pools = self._board.supervisor_status().get("pools", {})
        return {name: str(pool.get("problem", "")) for name, pool in pools.items() if pool.get("broken")}

    def _scheduler(self, *duties: Duty) -> Scheduler:
        return Scheduler(duties, between=self._between, failed=self._count, wall=self._gate.now)

    def _between(self) -> None:
        """Before each duty: slow ones must not cost the lease."""
        self._slot.beat()
        if self._lease is not None and self._lease.overdue() and self._start_up.done:
            with suppress(StoreError):
                self._lease.run(self._gate.now())

    def run(self) -> int:
        """Recover, report, then run the duties until asked to leave."""
        self._listen()
        self._slot.occupy(os.getpid())
        while not self._leaving and not self._start_up.done:
            self._turn(self._starting)
        while not self._leaving:
            self._turn(self._scheduler_of_duties)
        self._leave()
        return 0

    def _turn(self, scheduler: Scheduler) -> None:
        self._wait(scheduler)
        self._slot.beat()
        scheduler.perform()
        self._report(scheduler)
        self._counter.tell_rest()
        self._channel.flush()

    # Waiting for duties, messages and commits

    def _listen(self) -> None:
        ignored = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        signals.Inbox(obeyed=(), ignored=ignored)
        signals.unblock_all()
        self._poll = select.epoll()
        self._poll.register(self._channel.fileno(), select.EPOLLIN)
        self._hints = self._watch.fileno()
        self._listening = False
        if self._feed.problem:
            self._log.warning("inotify_unavailable", error=self._feed.problem, poll_seconds=self._watch.every)
        self._logged_problem = self._feed.problem

    def _wait(self, scheduler: Scheduler) -> None:
        """Wait until a duty is due, something has changed, or a message has arrived.

        Looking for changes is repeated here, and not with all other duties: it is done many times for a commit.
        """
        until = min(scheduler.next_at(apart=self._watch), time.monotonic() + BEAT)
        changes = scheduler.changes
        while not self._sleep(scheduler, until) and scheduler.changes == changes and time.monotonic() < until:
            pass

    def _sleep(self, scheduler: Scheduler, until: float) -> bool:
        """Until then, in monotonic seconds, at most; then look for changes if it is time. Returns whether something
        else has to be done now: there was a message, or changes cannot be looked for.
        """
        able = scheduler is self._scheduler_of_duties and scheduler.may_run(self._watch)
        self._set_listening(able)
        check = (self._watch.check_at if able else None) or inf
        patience = max(0.0, min(until, check) - time.monotonic())
        if patience < _COARSE:  # epoll counts in whole milliseconds
            select.select([self._poll.fileno()], [], [], patience)
            patience = 0.0
        ready = {descriptor for descriptor, _ in self._poll.poll(patience)}
        if self._hints in ready:
            self._watch.take_hints()
        if self._hints in ready or check <= time.monotonic():
            scheduler.hasten(self._watch)
            scheduler.attend(self._watch, self._waker)  # there may be a job, and every microsecond counts
            able = scheduler.may_run(self._watch)
        if ready - {self._hints}:
            self._receive()
            return True
        return not able

    def _set_listening(self, able: bool) -> None:
        """Let hints end the wait or not: without idle workers they can be read later."""
        listening = able and self._watch.listening()
        if self._hints is None or listening == self._listening:
            return
        self._listening = listening
        if listening:
            self._poll.register(self._hints, select.EPOLLIN)
        else:
            self._poll.unregister(self._hints)

    def _receive(self) -> None:
        for message, _ in self._channel.receive():
            if "death" in message:
                self._deaths.report(message["id"], message["death"])
                self._scheduler_of_duties.hasten(self._deaths)
            elif "leave" in message:
                self._leaving = True
        if self._channel.closed:
            self._leaving = True

    # Reporting to the supervisor

    def _report(self, scheduler: Scheduler) -> None:
        """It opens no database, so it must learn here whether the database can be used, and which duties fail."""
        trouble = trouble_of(scheduler.trouble)
        if trouble != self._sent_trouble:
            self._channel.send(trouble)
            self._sent_trouble = trouble
        if self._feed.problem != self._logged_problem:
            self._logged_problem = self._feed.problem
            if self._logged_problem:
                self._log.warning("notifications_missing", error=self._logged_problem, poll_seconds=self._watch.every)
        failing = scheduler.failing
        if failing != self._sent_failing:
            self._channel.send(failing_duties(failing))
            self._sent_failing = failing

    def _count(self, error: Exception) -> None:
        if isinstance(error, StoreBusy):
            self._counter.store_was_busy()

    # Shutdown

    def _leave(self) -> None:
        """Remove the supervisor from the registry, unless it died."""
        if self._channel.closed:
            return  # it died: recovery needs its rows
        if self._attempt(self._settle_all):
            self._attempt(self._deregister)
        self._attempt(self._store.flush)
        for close in (self._feed.close, self._store.close):
            self._attempt(close)

    def _settle_all(self) -> None:
        """Settle what was reported, and what nobody could report."""
        self._scheduler_of_duties.finish(self._deaths)
        if self._deaths.unsettled:
            raise StoreError(f"{self._deaths.unsettled} deaths could not be settled; the next supervisor recovers them")
        for record in self._store.registry.workers_of(self._orders.record.id):
            report = DeathReport(record.incarnation, record.name, "nothing", policy=record.policy)
            self._deaths.settle(report, self._gate.now())

    def _deregister(self) -> None:
        self._history.close(self._gate.now())
        self._store.registry.forget(self._orders.record.id, time.time())

    def _attempt(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:
            self._log.warning("registry_left", error=error_text(error))
            return False
        return True
