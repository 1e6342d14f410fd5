"""The maintainer: the one process that maintains the database. It starts no processes, and ends only those that a
dead supervisor has left.

Its first duty is start-up recovery; the supervisor forks no worker before it is reported done.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice

from supervisor.domain.duty import Duty, Needs
from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.text import text_of
from supervisor.maintenance.alerts import RaiseAlert
from supervisor.maintenance.deaths import DeathReport, Deaths, OutcomeCounter
from supervisor.maintenance.gates import OpenGates
from supervisor.maintenance.history import HistoryRecorder
from supervisor.maintenance.lease import LeaseRenewal
from supervisor.maintenance.locks import Reclaimer, Renewer
from supervisor.maintenance.orders import Orders
from supervisor.maintenance.prune_and_redrive import Pruner, Redriver
from supervisor.maintenance.recovery import Recovery, StartUp
from supervisor.maintenance.reports import (
    BurstWatch,
    DepthGauge,
    Poller,
    cancel_requests,
    control_settings,
    trouble_of,
    unhandled_types,
)
from supervisor.maintenance.scheduler import Failing, Scheduler, error_text
from supervisor.maintenance.schedules import ClockWatch, FireSchedule, FireSchedulesMade
from supervisor.maintenance.waking import CommitWatch, Sleep, Waker
from supervisor.store.base import Engine
from supervisor.system import counters, kernel, signals
from supervisor.system.channel import Channel
from supervisor.system.published import publish
from supervisor.system.scoreboard import MAINTAINER_SLOT, Scoreboard, counters_of, run_logs_of
from supervisor.telemetry import events

_MOST_DUTIES = 20  # failing ones that are reported


class Maintainer:
    """Created in its own process. `run` returns when the supervisor is gone or asks for it."""

    def __init__(self, orders: Orders, engine: Engine, channel: Channel, board: Scoreboard) -> None:
        self._own = orders.record.id
        self._channel = channel
        self._slot = board.slot(MAINTAINER_SLOT)
        self._gate = board.gate
        self._clock = board.gate.now
        self._store = engine.maintenance()
        self._counter = OutcomeCounter(counters.shared(counters_of(board.path), MAINTAINER_SLOT))
        self._log = events(process="maintainer")
        self._trouble = trouble_of(None)
        self._failing: dict[str, Failing] | None = None
        self._leaving = False

        # The duties that it must know one by one; without leases there is no `_lease`.
        store, gate, record = self._store, board.gate, orders.record
        self._deaths = Deaths(store.locks, run_logs_of(board.path), self._counter, channel.send)
        self._history = HistoryRecorder(store.history, store.backlog, record.id, counters_of(board.path))
        self._lease: LeaseRenewal | None = None
        if lease_time := engine.ownership.lease_time:
            gate.needed = 1
            self._lease = LeaseRenewal(store.registry, record, gate, lease_time, lambda: publish(board))
        recovery = Recovery(store.registry, store.locks, record.id, self._counter)
        pools = orders.pools.keys()
        expecting = any(schedule.expect_within is not None for schedule in orders.schedules)
        self._made = made = FireSchedulesMade(store.schedules, orders.schedule_of, expecting=expecting)
        controls = Poller(
            "controls", lambda: control_settings(store.controls, pools, record.host, gate, made.heed), channel.send
        )
        types = tuple(sorted({type_ for pool in orders.pools.values() for type_ in pool.wanted.types}))
        gates = OpenGates(
            store.gates, orders.limits, types
        )  # no worker claims what has expired, or is over a new limit
        first: list[Duty] = [controls, gates] if self._lease is None else [self._lease, controls, gates]
        watch = CommitWatch(engine.changes())
        waker = Waker(store.backlog, board, orders.pools, watch, gate.is_open)
        self._watch = watch
        self._start_up = StartUp(store.registry, record, recovery, channel.send, first)
        self._scheduler = self._scheduler_of(*first, *self._duties(orders, types, board, watch, waker, recovery))
        self._sleep = Sleep(channel, watch, waker, gates)

    def _duties(
        self,
        orders: Orders,
        types: tuple[str, ...],
        board: Scoreboard,
        watch: CommitWatch,
        waker: Waker,
        recovery: Recovery,
    ) -> Iterator[Duty]:
        """Those after the first ones, in the order in which they run when several are due."""
        store, gate, own, send = self._store, board.gate, orders.record.id, self._channel.send
        pools = {name: pool.wanted for name, pool in orders.pools.items()}
        of_engine = store.duties(self._log)
        yield self._deaths
        yield from (duty for duty in of_engine if duty.needs is Needs.NOTHING)  # checks that the database is there
        yield watch
        yield waker
        yield DepthGauge(store.backlog, pools, send, gate.is_open)
        yield (renewer := Renewer(store.locks, board, {**orders.pools, **orders.leaving}))
        yield Poller("cancels", lambda: cancel_requests(store.controls, own), send)
        yield Poller("unhandled types", lambda: unhandled_types(store.backlog, types, store.registry), send, 1.0)
        yield ClockWatch(store.backlog, store.gates)
        if orders.burst:  # it ends when there is nothing left to do: nothing brings new jobs, or failed ones again
            yield BurstWatch(store.backlog, store.locks, board, tuple(pools.values()), own, orders.since, send)
        else:
            for alert in orders.alerts:  # before the schedules: they would move on a time that was missed
                yield RaiseAlert(alert, store, pools, orders.schedules, board, orders.record.host)
            for schedule in orders.schedules:
                yield FireSchedule(store.schedules, schedule)
            yield self._made
            if redriven := [pool for pool in orders.pools.values() if pool.redrive_every > 0]:
                yield Redriver(store.finished, redriven)
        yield recovery
        shortest = min((pool.lock_time for pool in orders.pools.values()), default=60.0)
        yield Reclaimer(
            store.locks,
            store.registry,
            shortest,
            counter=self._counter,
            renewed=lambda: renewer.renewed,
            follow_ups=orders.follow_ups,
        )
        yield self._history
        yield from (duty for duty in of_engine if duty.needs is not Needs.NOTHING)
        yield Pruner(store.finished, orders.keep_done, orders.keep_failed)

    def _scheduler_of(self, *duties: Duty) -> Scheduler:
        return Scheduler(duties, between=self._between, failed=self._count, wall=self._clock)

    def _between(self) -> None:
        """Before each duty: slow ones must not cost the lease."""
        self._slot.beat()
        if self._lease is not None and self._lease.overdue() and self._start_up.done:
            with suppress(StoreError):
                self._lease.run(self._clock())

    def _count(self, error: Exception) -> None:
        if isinstance(error, StoreBusy):
            self._counter.row.busy()

    def run(self) -> int:
        """Recover, report, then run the duties until asked to leave."""
        ignored = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        signals.Inbox(obeyed=(), ignored=ignored)
        signals.unblock_all()
        kernel.sleep_precisely()
        self._slot.page.pid = os.getpid()
        self._slot.beat()
        starting = self._scheduler_of(self._start_up)
        while not self._leaving:
            self._turn(self._scheduler if self._start_up.done else starting)
        self._leave()
        return 0

    def _turn(self, scheduler: Scheduler) -> None:
        if self._sleep.until_due(scheduler):
            self._receive()
        self._slot.beat()
        scheduler.perform()
        self._report(scheduler)
        self._counter.events.tell_rest()
        self._channel.flush()

    def _receive(self) -> None:
        for message, _ in self._channel.receive():
            if "death" in message:
                self._deaths.reports[message["id"]] = message["death"]
                self._scheduler.hasten(self._deaths)
            elif "leave" in message:
                self._leaving = True
        if self._channel.closed:
            self._leaving = True

    def _report(self, scheduler: Scheduler) -> None:
        """Whether the database can be used, and which duties fail, if that has changed: the supervisor opens no
        database, so it learns it here.
        """
        before, self._trouble = self._trouble, trouble_of(scheduler.trouble)
        if self._trouble != before:
            self._channel.send(self._trouble)
            if not before["trouble"]:
                self._log.error("store_failed", error=self._trouble["trouble"])
            elif not self._trouble["trouble"]:
                self._log.info("store_recovered")
        failing = scheduler.failing
        if not failing and self._start_up.done:
            self._gate.watched = time.monotonic()
        if failing != self._failing:
            first = islice(failing.items(), _MOST_DUTIES)
            self._channel.send({"duties": {text_of(name): one._asdict() for name, one in first}})
            self._failing = failing

    # The end

    def _leave(self) -> None:
        """Remove the supervisor from the registry, unless it died."""
        if self._channel.closed:
            return  # it died: recovery needs its rows
        if self._attempt(self._settle_all):
            self._attempt(self._deregister)
        for step in (self._store.flush, self._watch.close, self._store.close):
            self._attempt(step)

    def _settle_all(self) -> None:
        """Settle what was reported, and what nobody could report."""
        self._deaths.run(self._clock())
        if self._deaths.reports:
            unsettled = len(self._deaths.reports)
            raise StoreError(f"{unsettled} deaths could not be settled; the next supervisor recovers them")
        for record in self._store.registry.workers_of(self._own):
            report = DeathReport(record.incarnation, record.name, "nothing", policy=record.policy)
            self._deaths.settle(report, self._clock())

    def _deregister(self) -> None:
        self._history.close(self._clock())
        self._store.registry.forget(self._own, self._clock())

    def _attempt(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:
            self._log.warning("registry_left", error=error_text(error))
            return False
        return True
