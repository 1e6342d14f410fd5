"""The maintainer: the one process that maintains the database. It starts no processes, and ends only those that a
dead supervisor has left.

Its first duty is start-up recovery; the supervisor forks no worker before it is reported done.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress

from supervisor.domain.duty import Duty
from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.maintenance.deaths import Counter, DeathReport
from supervisor.maintenance.duties import Duties, Orders
from supervisor.maintenance.reports import StateReport
from supervisor.maintenance.scheduler import Scheduler, error_text
from supervisor.maintenance.waking import Sleep
from supervisor.store.base import Engine
from supervisor.system import counters, signals
from supervisor.system.channel import Channel
from supervisor.system.scoreboard import MAINTAINER_SLOT, Scoreboard, counters_of
from supervisor.telemetry import events


class Maintainer:
    """Created in its own process. `run` returns when the supervisor is gone or asks for it."""

    def __init__(self, orders: Orders, engine: Engine, channel: Channel, board: Scoreboard) -> None:
        self._own = orders.record.id
        self._channel = channel
        self._slot = board.slot(MAINTAINER_SLOT)
        self._clock = board.gate.now
        self._store = engine.maintenance()
        self._counter = Counter(counters.shared(counters_of(board.path), MAINTAINER_SLOT))
        self._duties = Duties(orders, engine, self._store, board, self._counter, channel.send)
        self._scheduler = self._scheduler_of(*self._duties.all)
        self._sleep = Sleep(channel, self._duties.watch, self._duties.waker)
        self._leaving = False

    def _scheduler_of(self, *duties: Duty) -> Scheduler:
        return Scheduler(duties, between=self._between, failed=self._count, wall=self._clock)

    def _between(self) -> None:
        """Before each duty: slow ones must not cost the lease."""
        self._slot.beat()
        lease = self._duties.lease
        if lease is not None and lease.overdue() and self._duties.start_up.done:
            with suppress(StoreError):
                lease.run(self._clock())

    def _count(self, error: Exception) -> None:
        if isinstance(error, StoreBusy):
            self._counter.store_was_busy()

    def run(self) -> int:
        """Recover, report, then run the duties until asked to leave."""
        ignored = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        signals.Inbox(obeyed=(), ignored=ignored)
        signals.unblock_all()
        self._slot.page.pid = os.getpid()
        self._slot.beat()
        report, starting = (
            StateReport(self._channel.send, self._duties.watch),
            self._scheduler_of(self._duties.start_up),
        )
        while not self._leaving and not self._duties.start_up.done:
            self._turn(starting, report)
        while not self._leaving:
            self._turn(self._scheduler, report)
        self._leave()
        return 0

    def _turn(self, scheduler: Scheduler, report: StateReport) -> None:
        if self._sleep.until_due(scheduler):
            self._receive()
        self._slot.beat()
        scheduler.perform()
        report.send(scheduler)
        self._counter.tell_rest()
        self._channel.flush()

    def _receive(self) -> None:
        for message, _ in self._channel.receive():
            if "death" in message:
                self._duties.deaths.report(message["id"], message["death"])
                self._scheduler.hasten(self._duties.deaths)
            elif "leave" in message:
                self._leaving = True
        if self._channel.closed:
            self._leaving = True

    def _leave(self) -> None:
        """Remove the supervisor from the registry, unless it died."""
        if self._channel.closed:
            return  # it died: recovery needs its rows
        if self._attempt(self._settle_all):
            self._attempt(self._deregister)
        self._attempt(self._store.flush)
        for close in (self._duties.watch.close, self._store.close):
            self._attempt(close)

    def _settle_all(self) -> None:
        """Settle what was reported, and what nobody could report."""
        deaths = self._duties.deaths
        self._scheduler.finish(deaths)
        if deaths.unsettled:
            raise StoreError(f"{deaths.unsettled} deaths could not be settled; the next supervisor recovers them")
        for record in self._store.registry.workers_of(self._own):
            report = DeathReport(record.incarnation, record.name, "nothing", policy=record.policy)
            deaths.settle(report, self._clock())

    def _deregister(self) -> None:
        self._duties.history.close(self._clock())
        self._store.registry.forget(self._own, self._clock())

    def _attempt(self, step: Callable[[], object]) -> bool:
        try:
            step()
        except Exception as error:
            events(process="maintainer").warning("registry_left", error=error_text(error))
            return False
        return True
