"""The supervisor's side of its maintainer: it gets orders, and reports of deaths, which are kept until it has settled
them. Nothing is forked before the first maintainer has recovered what dead supervisors have left.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from supervisor.config.reader import schedule_of
from supervisor.config.settings import Settings
from supervisor.domain.errors import StoreError
from supervisor.maintenance.deaths import DeathReport
from supervisor.maintenance.maintainer import Maintainer
from supervisor.maintenance.orders import Orders, PoolOrders
from supervisor.maintenance.reports import trouble_of
from supervisor.store.base import Engine, JobSelector, SupervisorRecord
from supervisor.supervision.pool import Pool
from supervisor.supervision.pools import Pools
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import MAINTAINER_SLOT, MAX_SLOTS, Scoreboard
from supervisor.system.signals import Reactor
from supervisor.system.slot import Slot
from supervisor.telemetry import events


class Slots:
    """A slot is reused only after the end of its previous worker has been settled."""

    most = MAX_SLOTS - 1

    def __init__(self, board: Scoreboard) -> None:
        self._board = board
        self._free = list(range(self.most, 0, -1))

    @property
    def full(self) -> bool:
        return not self._free

    def take(self, incarnation: str, name: str) -> tuple[int, Slot]:
        """Assign the lowest free slot to this worker."""
        number = self._free.pop()
        slot = self._board.slot(number)
        slot.assign(incarnation, name)
        self._board.use_up_to(number)
        return number, slot

    def give_back(self, number: int) -> None:
        self._board.slot(number).clear()
        self._free.append(number)


class MaintainerClient:
    """Keeps a maintainer running. Reports of deaths, by slot, are kept until this or a later one has acknowledged
    them; then their slots are free. `duties` are those that fail now.
    """

    def __init__(
        self, record: SupervisorRecord, engine: Engine, board: Scoreboard, reactor: Reactor, *, burst: bool
    ) -> None:
        self.process = SupervisedProcess("maintainer", board, MAINTAINER_SLOT, reactor)
        self.slots = Slots(board)
        self.unacknowledged: dict[int, DeathReport] = {}
        self.recovered = False
        self.duties: dict[str, Any] = {}
        self._record = record
        self._burst = burst
        self._engine = engine
        self._board = board
        self._unhandled: set[str] = set()  # types without a pool

    def start(self, settings: Settings, pools: Pools) -> None:
        """Fork a maintainer and send it the unacknowledged reports. If the fork fails, try again later."""
        ours = {pool.name: _pool_orders(pool) for pool in pools.values() if not pool.closing}
        orders = Orders(
            record=self._record,
            pools=ours,
            leaving={pool.name: _pool_orders(pool) for pool in pools.values() if pool.closing},
            keep_done=settings.retention.done,
            keep_failed=settings.retention.failed,
            schedules=settings.schedules,
            schedule_of=schedule_of,
            alerts=settings.alerts,
            limits=settings.limits,
            burst=self._burst,
            since=self._record.started_at,
            follow_ups={t: follow for pool in pools.values() for t, follow in pool.settings.policy.follow_ups.items()},
        )

        def become(channel: Channel) -> int:
            try:
                maintainer = Maintainer(orders, self._engine, channel, self._board)
            except StoreError as error:
                channel.send(trouble_of(error))
                return 1
            return maintainer.run()

        keep = [pool.wake for pool in ours.values()]
        if self.process.start(become, time.monotonic(), keep=keep):
            for number, report in self.unacknowledged.items():
                self.process.send({"death": report.as_message(), "id": number})

    def retire(self) -> None:
        """End it, for one with orders from a new configuration."""
        self._unhandled = set()
        self.process.retire()

    def report(self, death: DeathReport) -> None:
        """Report a death to be settled."""
        self.unacknowledged[death.slot] = death
        self.process.send({"death": death.as_message(), "id": death.slot})

    def hear(self, obey: Callable[[Message], None]) -> None:
        """Process the maintainer's messages. Each is passed to `obey`."""
        for message in self.process.hear():
            if "ack" in message and (settled := self.unacknowledged.pop(message["ack"], None)) is not None:
                self.slots.give_back(settled.slot)
            if "recovered" in message:
                self.recovered, found = True, message["recovered"]
                log = events(process="supervisor")
                (log.info if found["supervisors"] else log.debug)("recovered", **found)
            if "duties" in message:
                self.duties = message["duties"]
            if "unhandled" in message:
                self._warn_of_unhandled(message["unhandled"])
            obey(message)

    def _warn_of_unhandled(self, types: list[str]) -> None:
        """Warn once per type, although a new maintainer reports all of them again."""
        news = sorted(set(types) - self._unhandled)
        self._unhandled = set(types)
        if news:
            hint = "no pool of this supervisor takes these types"
            events(process="supervisor").warning("types_unhandled", types=news, hint=hint)


def _pool_orders(pool: Pool) -> PoolOrders:
    """What the maintainer must know of a pool."""
    settings = pool.settings
    return PoolOrders(
        JobSelector(settings.types, " ".join(settings.capabilities), settings.min_priority),
        pool.wake,
        settings.lock_time,
        settings.heartbeat_timeout,
        settings.retry_failed_every,
        settings.retry_failed_times,
    )
