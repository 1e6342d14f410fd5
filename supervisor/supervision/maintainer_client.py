"""The supervisor's side of the maintainer: sends its orders, and keeps reports of deaths until they are settled."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from supervisor.config.settings import Settings
from supervisor.domain.errors import StoreError
from supervisor.maintenance.deaths import DeathReport
from supervisor.maintenance.maintainer import Maintainer, Orders
from supervisor.maintenance.messages import trouble_of
from supervisor.store.base import Engine, SupervisorRecord
from supervisor.supervision.pools import Pools
from supervisor.supervision.slots import Slots
from supervisor.supervision.supervised_process import SupervisedProcess
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events


def orders_of(settings: Settings, record: SupervisorRecord, pools: Pools, *, burst: bool) -> Orders:
    """The orders for the next maintainer."""
    return Orders(
        record=record,
        pool_infos=pools.pool_infos(),
        leaving=pools.leaving(),
        keep_done=settings.retention.done,
        keep_failed=settings.retention.failed,
        schedules=settings.schedules,
        alerts=settings.alerts,
        burst=burst,
        vacuum=settings.vacuum,
        since=record.started_at,
    )


class MaintainerClient:
    """Reports of deaths are kept until this or a later maintainer has acknowledged them; then their slots are free."""

    def __init__(self, engine: Engine, board: Scoreboard, slots: Slots, process: SupervisedProcess) -> None:
        self._engine = engine
        self._board = board
        self._slots = slots
        self._process = process
        self._numbers = itertools.count(1)
        self.unacknowledged: dict[int, DeathReport] = {}
        self._unhandled: set[str] = set()  # types without a pool
        self._log = events(process="supervisor")
        self.recovered = False

    def start(self, orders: Orders, now: float) -> None:
        """Fork a maintainer and send it the unacknowledged reports. If the fork fails, try again later."""

        def become(channel: Channel) -> int:
            try:
                maintainer = Maintainer(orders, self._engine, channel, self._board)
            except StoreError as error:
                channel.send(trouble_of(error))
                return 1
            return maintainer.run()

        if self._process.start(become, now, keep=[info.wake for info in orders.pool_infos.values()]):
            for number, report in self.unacknowledged.items():
                self._process.send({"death": report.as_message(), "id": number})

    def report(self, death: DeathReport) -> None:
        """Report a death to be settled."""
        number = next(self._numbers)
        self.unacknowledged[number] = death
        self._process.send({"death": death.as_message(), "id": number})

    def hear(self, obey: Callable[[Message], None]) -> None:
        """Process the maintainer's messages. Each is passed to `obey`."""
        for message in self._process.hear():
            if "ack" in message and (settled := self.unacknowledged.pop(message["ack"], None)) is not None:
                self._slots.give_back(settled.slot)
            if "recovered" in message:
                self.recovered, found = True, message["recovered"]
                log = self._log.info if found["supervisors"] else self._log.debug
                log("recovered", **found)
            if "unhandled" in message:
                self._warn_of_unhandled(message["unhandled"])
            obey(message)

    def _warn_of_unhandled(self, types: list[str]) -> None:
        """Warn once per type, although a new maintainer reports all of them again."""
        news = sorted(set(types) - self._unhandled)
        self._unhandled = set(types)
        if news:
            self._log.warning("types_unhandled", types=news, hint="no pool of this supervisor takes these types")

    def replace(self, orders: Orders, now: float) -> None:
        """Start another one with orders from a new configuration."""
        self._unhandled = set()
        self._process.retire()
        self.start(orders, now)
