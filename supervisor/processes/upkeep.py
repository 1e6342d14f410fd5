"""The supervisor's end of the maintainer: starts and replaces it, and loses no report of a death."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable

from supervisor.domain.errors import StoreError
from supervisor.maintenance.deaths import DeathReport
from supervisor.maintenance.maintainer import Maintainer, Orders, trouble_of
from supervisor.store.base import Engine
from supervisor.system import child, kernel
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import MAINTAINER_SLOT, Scoreboard
from supervisor.telemetry import events

STUCK_AFTER = 15.0  # seconds without a beat; a busy database is waited for in steps of 5 s
_RESTART_PAUSE = 0.5  # seconds, doubled with each early death in a row
_LONGEST_PAUSE = 10.0
_EARLY = 10.0  # seconds: a maintainer that dies younger may die of the same cause again


class Upkeep:
    """One maintainer at a time. Reports of deaths are kept until one has acknowledged them."""

    def __init__(self, engine: Engine, board: Scoreboard) -> None:
        self._engine = engine
        self._board = board
        self._numbers = itertools.count(1)
        self._channel: Channel | None = None
        self._not_before = self._started_at = 0.0
        self.early_deaths = 0  # in a row
        self.unacknowledged: dict[int, DeathReport] = {}
        self.pid = 0
        self.pidfd = -1
        self.recovered = False

    def start(self, orders: Orders, now: float) -> None:
        """Fork a maintainer and give it what the last one may not have settled; `restart_at` tells if it cannot be."""
        self._started_at = now
        self._board.slot(MAINTAINER_SLOT).assign("maintainer", "maintainer")

        def become(channel: Channel) -> int:
            try:
                maintainer = Maintainer(orders, self._engine, channel, self._board)
            except StoreError as error:
                channel.send(trouble_of(error))
                return 1
            return maintainer.run()

        wakes = [ward.wake for ward in orders.wards.values()]
        try:
            self._channel, self.pid, self.pidfd = child.fork_with_channel(become, role="maintainer", keep=wakes)
        except OSError as error:
            self._died_early(now)
            events(process="supervisor").error("fork_failed", of="maintainer", error=error.strerror)
            return
        for number, report in self.unacknowledged.items():
            self._channel.send({"death": report.as_message(), "id": number})

    def is_running(self) -> bool:
        return self._channel is not None

    def fileno(self) -> int:
        assert self._channel is not None
        return self._channel.fileno()

    def report(self, death: DeathReport) -> int:
        """Have a death settled. Returns the number under which it will be acknowledged."""
        number = next(self._numbers)
        self.unacknowledged[number] = death
        if self._channel is not None:
            self._channel.send({"death": death.as_message(), "id": number})
        return number

    def hear(self, obey: Callable[[Message], None]) -> None:
        """Take in what the maintainer says; `obey` gets what is not about the link itself."""
        if self._channel is None:
            return
        self._channel.flush()
        for message, _ in self._channel.receive():
            if "ack" in message:
                self.unacknowledged.pop(message["ack"], None)
            if "recovered" in message:
                self.recovered = True
            obey(message)

    def ended(self) -> bool:
        """Whether the maintainer has gone; its end is then tidied up and its successor's time set."""
        if self._channel is None or not self._channel.closed:
            return False
        self._drop()
        now = time.monotonic()
        if now - self._started_at >= _EARLY:
            self.early_deaths = 0
        self._died_early(now)
        return True

    def _died_early(self, now: float) -> None:
        self.early_deaths += 1
        pause = 0.0 if self.early_deaths == 1 else _RESTART_PAUSE * 2.0 ** min(self.early_deaths - 2, 8)
        self._not_before = now + min(pause, _LONGEST_PAUSE)

    @property
    def restart_at(self) -> float | None:
        """When a successor may start, in monotonic seconds; None while one is running."""
        return self._not_before if self._channel is None else None

    def stuck(self, now: float) -> bool:
        """No beat for long: stopped, or hanging in a call. Kill it; its end is then noticed as any other."""
        if self._channel is None:
            return False
        beat = self._board.slot(MAINTAINER_SLOT).read().beat
        return now - beat > STUCK_AFTER

    def kill(self) -> None:
        if self.pidfd >= 0:
            kernel.send_signal(self.pidfd, 9)

    def dismiss(self) -> None:
        """Ask it to finish: settle what is left and strike us from the registry."""
        if self._channel is not None:
            self._channel.send({"leave": True})

    def retire(self) -> None:
        """End it at once for a successor with other orders; it writes in short transactions only."""
        self.kill()
        self._drop()

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        events().debug("maintainer_gone", pid=self.pid)
