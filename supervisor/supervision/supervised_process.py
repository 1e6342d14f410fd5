"""A child process of the supervisor (maintainer or admin process), which is replaced when it dies or hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

from supervisor.domain.process_health import Signs, first_late, hangs
from supervisor.system import child, ending, kernel
from supervisor.system.channel import Channel, Message
from supervisor.system.reactor import Reactor
from supervisor.system.scoreboard import Scoreboard
from supervisor.telemetry import events

STUCK_AFTER = 15.0  # seconds without a heartbeat; waiting for a busy database takes steps of 5 s
_RESTART_PAUSE = 0.5  # seconds, doubled with each early death in a row
_LONGEST_PAUSE = 10.0
_EARLY = 10.0  # seconds; a process that dies earlier may die of the same cause again


class SupervisedProcess:
    """One child process at a time with one `role`; its slot is `number`. Times are monotonic seconds.

    `starting` is the time allowed until its first heartbeat, which comes after its imports.
    """

    def __init__(
        self, role: str, board: Scoreboard, number: int, reactor: Reactor, *, starting: float = STUCK_AFTER
    ) -> None:
        self.role = role
        self._slot = board.slot(number)
        self._reactor = reactor
        self._starting = starting
        self._log = events(process="supervisor")
        self._channel: Channel | None = None
        self._not_before = self._started_at = 0.0
        self._leave_by: float | None = None
        self.early_deaths = 0  # in a row
        self.pid = 0
        self._pidfd = -1
        self._late: Signs | None = None  # since when its heartbeat is late

    def start(self, run: Callable[[Channel], int], now: float, keep: Iterable[int] = ()) -> bool:
        """Fork it. Returns False if no process can be started; `restart_at` is the time of the next attempt."""
        self._started_at = now
        self._leave_by = self._late = None
        self._slot.assign(self.role, self.role)
        try:
            self._channel, self.pid, self._pidfd = child.fork_with_channel(run, role=self.role, keep=keep)
        except OSError as error:
            self._died_early(now)
            self._log.error("fork_failed", of=self.role, error=error.strerror)
            return False
        self._reactor.watch(self._channel.fileno())
        return True

    def is_running(self) -> bool:
        return self._channel is not None

    @property
    def restart_at(self) -> float | None:
        """When a successor may start; None while one is running."""
        return self._not_before if self._channel is None else None

    def due(self, now: float) -> bool:
        """Whether no process is running and a successor may start."""
        return self._channel is None and now >= self._not_before

    def send(self, message: Message) -> None:
        """Send a message if the process is running."""
        if self._channel is not None:
            self._channel.send(message)

    def hear(self) -> list[Message]:
        """The messages since the last call."""
        if self._channel is None:
            return []
        self._channel.flush()
        return self._channel.hear() if self._reactor.is_readable(self._channel.fileno()) else []

    def check(self, now: float) -> bool:
        """Clean up after an ended process, or kill one that hangs. Returns whether it has ended."""
        if self._channel is None:
            return False
        if self._channel.closed:
            self._reap(now)
            return True
        if self._leave_by is not None and now > self._leave_by:
            self.kill()
        elif self._is_stuck(now):
            self._log.error(f"{self.role}_stuck", pid=self.pid)
            self.kill()
        return False

    def _is_stuck(self, now: float) -> bool:
        """Whether there was no heartbeat for too long: it is stopped, or hangs in a call."""
        slot = self._slot.read()
        limit = STUCK_AFTER if slot.pid else self._starting
        if now - slot.beat <= limit:
            self._late = None
            return False
        signs = Signs(now, slot.beat, *kernel.cpu_and_state(self.pid))
        self._late = first_late(self._late, signs)
        return hangs(signs, self._late, limit)

    def kill(self) -> None:
        if self._pidfd >= 0:
            ending.send_signal(self._pidfd, signal.SIGKILL)

    def dismiss(self, patience: float, *, finish: float = 0.0) -> None:
        """Ask it to end. It has `finish` seconds for what it has begun, and is killed after `patience` more."""
        self.send({"leave": finish})
        if self._leave_by is None:
            self._leave_by = time.monotonic() + finish + patience

    def retire(self) -> None:
        """Kill it now, for a successor with new orders."""
        self.kill()
        self._drop()

    def _reap(self, now: float) -> None:
        self.kill()  # the channel may have ended before the process
        self._drop()
        if self._leave_by is not None:
            self._not_before = now  # it was asked to leave
            return
        if now - self._started_at >= _EARLY:
            self.early_deaths = 0
        self._died_early(now)
        self._log.error(f"{self.role}_died", pid=self.pid, in_a_row=self.early_deaths)

    def _died_early(self, now: float) -> None:
        self.early_deaths += 1
        pause = 0.0 if self.early_deaths == 1 else _RESTART_PAUSE * 2.0 ** min(self.early_deaths - 2, 8)
        self._not_before = now + min(pause, _LONGEST_PAUSE)

    def _drop(self) -> None:
        if self._channel is not None:
            self._reactor.unwatch(self._channel.fileno())
            self._channel.close()
            self._channel = None
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        self._log.debug(f"{self.role}_gone", pid=self.pid)
