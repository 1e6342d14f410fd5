"""The maintainer: the one process that does the database's chores. It starts, stops and signals nobody.

Its first duty is start-up recovery; the supervisor forks no worker before it has reported that done.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Protocol

from supervisor.domain.errors import StoreError, StoreGone
from supervisor.domain.schedule import Schedule
from supervisor.maintenance.checkpointer import Checkpointer
from supervisor.maintenance.counting import Counter
from supervisor.maintenance.courtesy import Courtesy
from supervisor.maintenance.deaths import DeathReport, Deaths
from supervisor.maintenance.depth import DepthGauge
from supervisor.maintenance.historian import Historian
from supervisor.maintenance.presence import Presence
from supervisor.maintenance.pruner import Pruner
from supervisor.maintenance.reclaimer import Reclaimed, Reclaimer
from supervisor.maintenance.recovery import Recovered, Recovery
from supervisor.maintenance.renewer import LockTimes, Renewer
from supervisor.maintenance.roster import Roster
from supervisor.maintenance.schedules import Schedules
from supervisor.maintenance.steering import BurstWatch, Steering
from supervisor.maintenance.waker import Waker
from supervisor.store.base import Chores, Depth, Engine, SupervisorRecord, Wanted
from supervisor.system import failpoints, signals, tallies
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import MAINTAINER_SLOT, Scoreboard
from supervisor.telemetry import events

BEAT = 1.0  # seconds between two stamps at most
_COARSE = 0.01  # seconds; below it a millisecond more or less matters
_LONGEST_BACKOFF = 5.0


@dataclass(frozen=True, slots=True)
class Ward:
    """What the maintainer must know of one pool. `wake` is the eventfd on which its idle workers sleep."""

    wanted: Wanted
    wake: int
    locks: LockTimes


@dataclass(frozen=True, slots=True)
class Orders:
    """What the supervisor wants of this maintainer. Retentions are seconds, None means for ever.

    `leaving` are pools that a reload took away: their workers get no more jobs, but finish theirs.
    """

    record: SupervisorRecord
    wards: Mapping[str, Ward]
    leaving: Mapping[str, LockTimes]
    keep_done: float | None
    keep_failed: float | None
    schedules: tuple[Schedule, ...]
    burst: bool
    since: float  # Unix seconds: when the supervisor started


class Duty(Protocol):
    """One chore: bounded in rows and time, `every` seconds."""

    @property
    def every(self) -> float: ...

    def run_once(self, now: float) -> object: ...


class Maintainer:
    """Made in its own process. `run` returns when the supervisor is gone or says so."""

    def __init__(self, orders: Orders, engine: Engine, channel: Channel, board: Scoreboard) -> None:
        self._orders = orders
        self._channel = channel
        self._slot = board.slot(MAINTAINER_SLOT)
        self._log = events(process="maintainer")
        self._failing = 0.0
        self._told = trouble_of(None)
        self._leaving = False
        self._unsettled: dict[int, DeathReport] = {}
        self._chores: Chores = engine.chores()
        self._build(engine, board)

    def _build(self, engine: Engine, board: Scoreboard) -> None:
        orders, chores = self._orders, self._chores
        roster = Roster(board)
        wanted = {name: ward.wanted for name, ward in orders.wards.items()}
        types = tuple(sorted({t for w in wanted.values() for t in w.types}))
        self._counter = Counter(tallies.shared(board.tallies, MAINTAINER_SLOT))
        self._deaths = Deaths(chores, board.tapes, self._counter)
        self._recovery = Recovery(chores, orders.record.id, self._counter)
        self._historian = Historian(chores, orders.record.id, board.tallies)
        self._gauge = DepthGauge(chores, wanted, self._report_depths)
        self._courtesy = Courtesy(chores)
        self._schedules = Schedules(engine.timetable, () if orders.burst else orders.schedules)
        self._steering = Steering(chores, types, self._channel.send)
        self._waker = Waker(
            chores,
            roster,
            {name: (ward.wanted, ward.wake) for name, ward in orders.wards.items()},
            engine.watched,
            engine.watch_prefix,
            self._changed,
        )
        shortest = min((ward.locks.lock_time for ward in orders.wards.values()), default=60.0)
        duties: list[Duty] = [
            Presence(chores),
            self._waker,
            self._gauge,
            self._schedules,
            self._steering,
            self._courtesy,
            Renewer(chores, roster, {name: ward.locks for name, ward in orders.wards.items()} | dict(orders.leaving)),
            Reclaimer(chores, shortest, counter=self._counter),
            self._recovery,
            self._historian,
            Checkpointer(chores),
            Pruner(chores, orders.keep_done, orders.keep_failed),
        ]
        if orders.burst:
            duties.append(
                BurstWatch(chores, roster, tuple(wanted.values()), orders.record.id, orders.since, self._channel.send)
            )
        self._next = dict.fromkeys(duties, 0.0)

    def run(self) -> int:
        """Recover, report, then see to the duties until told to leave."""
        self._listen()
        self._slot.occupy(os.getpid())
        while not self._leaving and not self._recovered():
            self._wait(time.monotonic() + self._failing)
            self._hear()
        while not self._leaving:
            self._wait(self._due())
            self._slot.beat()
            self._hear()
            self._perform()
            self._channel.flush()
        self._part()
        return 0

    def _recovered(self) -> bool:
        try:
            self._chores.register(self._orders.record)
            recovered = self._recovery.run_once(time.time())
        except StoreError as error:
            self._trouble(error)
            return False
        self._channel.send({"recovered": asdict(recovered)})
        self._well()
        return True

    def _perform(self) -> None:
        """Settle what could not be settled before, then run every duty whose time has come."""
        if not self._bury():
            return
        at, now = time.monotonic(), time.time()
        for duty, due in self._next.items():
            if due > at:
                continue
            self._next[duty] = at + duty.every
            try:
                result = duty.run_once(now)
                if isinstance(result, (Recovered, Reclaimed)) and result.jobs:
                    self._returned()
            except StoreError as error:
                self._next[duty] = at  # again as soon as the database can be used
                self._trouble(error)
                return
        self._well()

    def _trouble(self, error: StoreError) -> None:
        self._counter.store_failed(error)
        if not self._failing:
            self._log.error("store_failed", error=str(error))
        self._failing = min(max(self._failing * 2, 0.1), _LONGEST_BACKOFF)
        self._tell(trouble_of(error))

    def _well(self) -> None:
        if self._failing:
            self._failing = 0.0
            self._log.info("store_recovered")
            self._tell(trouble_of(None))

    def _tell(self, trouble: Message) -> None:
        """The supervisor opens no database, so it must hear from us whether there is one to work with."""
        if trouble != self._told:
            self._told = trouble
            self._channel.send(trouble)

    # Sleeping and hearing

    def _listen(self) -> None:
        ignored = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
        signals.Inbox(obeyed=(), ignored=ignored)
        signals.unblock_all()
        self._poll = select.epoll()
        self._poll.register(self._channel.fileno(), select.EPOLLIN)
        self._watch = self._waker.fileno()
        self._hearing = False

    def _wait(self, until: float) -> None:
        now = time.monotonic()
        self._attend(not self._failing and self._waker.listening(now))
        patience = max(0.0, min(until - now, BEAT))
        if patience < _COARSE:  # epoll counts in whole milliseconds
            select.select([self._poll.fileno()], [], [], patience)
            patience = 0.0
        for descriptor, _ in self._poll.poll(patience):
            if descriptor == self._watch:
                self._waker.heard(time.monotonic())
                self._next[self._waker] = 0.0

    def _attend(self, hearing: bool) -> None:
        """Let inotify end our sleep, or not: events keep while there is nobody to wake."""
        if self._watch is None or hearing == self._hearing:
            return
        self._hearing = hearing
        if hearing:
            self._poll.register(self._watch, select.EPOLLIN)
        else:
            self._poll.unregister(self._watch)

    def _due(self) -> float:
        """When something has to be done next, in monotonic seconds."""
        if self._failing:
            return time.monotonic() + self._failing
        now, at = time.time(), time.monotonic()
        if self._waker.due_at is not None:
            self._next[self._waker] = min(self._next[self._waker], self._waker.due_at)
        for duty in (self._gauge, self._schedules):
            if duty.next_due is not None:
                # An exact timer for the next delayed job or schedule; a little late, so that it is due by then.
                exact = at + max(0.0, duty.next_due - now) + 0.0005
                self._next[duty] = min(self._next[duty], exact)
        return min(self._next.values())

    def _hear(self) -> None:
        for message, _ in self._channel.receive():
            self._obey(message)
        if self._channel.closed:
            self._leaving = True

    def _obey(self, message: Message) -> None:
        if "death" in message:
            self._unsettled[message["id"]] = DeathReport(**message["death"])
            if not self._failing:
                self._bury()
        elif "leave" in message:
            self._leaving = True

    def _bury(self) -> bool:
        """Settle and acknowledge what deaths were reported. False: the rest is kept for the next try."""
        for number, report in list(self._unsettled.items()):
            failpoints.reach("death.received")
            try:
                settled = self._deaths.settle(report, time.time())
                failpoints.reach("death.settled")
                del self._unsettled[number]
                self._channel.send({"ack": number, "jobs": settled})
                self._returned()
            except StoreError as error:
                self._trouble(error)
                return False
        return True

    def _returned(self) -> None:
        """Jobs went back by our own hand, which the database's version does not show to us."""
        self._waker.look(time.time())
        self._changed()

    # What the duties report

    def _changed(self) -> None:
        at = time.monotonic()
        for duty in (self._gauge, self._steering, self._courtesy):
            duty.changed()
            # At once after a quiet time, else when the duty has settled from its last run.
            self._next[duty] = min(self._next[duty], max(at, duty.settled_at))

    def _report_depths(self, depths: Mapping[str, Depth]) -> None:
        now = time.time()
        if any(depth.due for depth in depths.values()):
            self._waker.look(now)
        self._channel.send(
            {
                "depths": {
                    name: {
                        "due": depth.due,
                        "oldest_age": 0.0 if depth.oldest is None else max(0.0, now - depth.oldest),
                    }
                    for name, depth in depths.items()
                }
            }
        )

    def _part(self) -> None:
        """The supervisor is done with its workers: strike it from the registry, if that is why we leave."""
        if self._channel.closed:
            return  # it died: recovery needs the registry
        try:
            self._bury()
            for record in self._chores.workers_of(self._orders.record.id):
                self._deaths.settle(
                    DeathReport(record.incarnation, record.name, "nothing", policy=record.policy), time.time()
                )
            self._historian.close(time.time())
            self._chores.forget_supervisor(self._orders.record.id)
            self._chores.checkpoint()
        except StoreError as error:
            self._log.warning("registry_left", error=str(error))
        self._schedules.close()
        self._chores.close()


def trouble_of(error: StoreError | None) -> Message:
    """What the supervisor is told of the database: why it cannot be used, or an empty text."""
    gone = ("replaced" if error.replaced else "removed") if isinstance(error, StoreGone) else ""
    return {"trouble": "" if error is None else str(error), "gone": gone}
