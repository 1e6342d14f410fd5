"""The supervisor as a service: what wakes it (descriptors, times, signals), and whom it tells (its log, systemd)."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterable
from math import inf
from typing import TextIO, cast

from supervisor.config.settings import LogSettings
from supervisor.system import child, kernel, settled_notice, signals
from supervisor.system.outlet import Outlet
from supervisor.system.signals import Reactor, Timers
from supervisor.system.sockets import Notifier
from supervisor.telemetry import configure

TICK = 1.0  # seconds between two reads of the scoreboard


class Service:
    """Whoever waits for a descriptor registers it with the `reactor`, whoever waits for a time is one of the `timers`.

    Most reads of the scoreboard happen once a tick, when idle once a second: `ticking` says whether this pass of the
    loop is one. Times are monotonic seconds.
    """

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.timers = Timers()
        self.notifier = Notifier()
        self.outlet = Outlet()  # of the log
        self.ticking = False
        self._next_tick = 0.0
        self._ready = False
        self._inbox: signals.Inbox | None = None
        self.timers.add("tick", lambda: [self._next_tick])

    def enter(self, log: LogSettings) -> None:
        """From now on this process owns others, and its signals are ours."""
        kernel.become_subreaper()
        child.hold_lifeline()
        settled_notice.hold()
        self.log(log)
        self._inbox = signals.Inbox(
            obeyed=(signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD),
            ignored=(signal.SIGUSR1, signal.SIGUSR2),
        )
        self.reactor.watch(self._inbox.fileno())

    def log(self, settings: LogSettings) -> None:
        """Write the log in this form."""
        configure(settings.format, settings.level, cast("TextIO", self.outlet))

    def wait(self, most: float = inf) -> list[int]:
        """Sleep until something happens or is due, for so many seconds at most. Returns the signals that have come."""
        self.reactor.wait(min(most, self.timers.sleep(time.monotonic())))
        inbox = self._inbox
        return inbox.take() if inbox is not None and self.reactor.is_readable(inbox.fileno()) else []

    def begin_tick(self, timeouts: Iterable[float], now: float) -> None:
        """Start a tick if it is due: often enough for the shortest of these time limits, and for systemd's watchdog."""
        self.ticking = now >= self._next_tick
        if self.ticking:
            shortest = min(timeouts, default=TICK * 4)
            self._next_tick = now + min(max(0.05, shortest / 4), TICK, self.notifier.interval or TICK)
        self.notifier.alive(now)

    def ready_once(self, status: str) -> None:
        """Tell systemd that the start is over, the first time."""
        if not self._ready:
            self._ready = True
            self.notifier.ready(status)

    def tick_soon(self) -> None:
        """There is news for `status`."""
        self._next_tick = 0.0
