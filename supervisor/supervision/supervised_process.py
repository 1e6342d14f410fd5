"""Child processes of the supervisor: a channel and a pidfd to each, and one that is replaced when it dies or hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable

from supervisor.domain.polling import backoff
from supervisor.system import child, ending, kernel
from supervisor.system.channel import Channel, Message
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.signals import Reactor
from supervisor.telemetry import events

STUCK_AFTER = 15.0  # seconds without a heartbeat; waiting for a busy database takes steps of 5 s
_LONGER = 2  # times that, for one that is not stopped: on an overloaded machine it may be late although it works
_RESTART_PAUSE = 0.5  # seconds, doubled with each early death in a row
_LONGEST_PAUSE = 10.0
_EARLY = 10.0  # seconds; a process that dies earlier may die of the same cause again


class Child:
    """A forked process that runs `run` with its end of a channel. Raises OSError if none can be started.

    `descriptor` is that of our end, also after its end; `status` its wait status, once it has been reaped.
    """

    def __init__(self, run: Callable[[Channel], int], *, role: str, keep: Iterable[int]) -> None:
        self.channel, self.pid, self._pidfd = child.fork_with_channel(run, role=role, keep=keep)
        self.descriptor = self.channel.fileno()
        self.status: int | None = None

    @property
    def gone(self) -> bool:
        """Whether it has ended, as its wait status or its channel says."""
        return self.status is not None or self.channel.closed

    def kill(self) -> None:
        if self._pidfd >= 0:
            ending.send_signal(self._pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close our end, without waiting for its end."""
        self.channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1


class SupervisedProcess:
    """Keeps up one process with one `role`: the maintainer, or the admin process. Times are monotonic seconds.

    Its slot is `number`. `starting` is the time allowed until its first heartbeat, which comes after its imports.
    """

    def __init__(
        self, role: str, board: Scoreboard, number: int, reactor: Reactor, *, starting: float = STUCK_AFTER
    ) -> None:
        self.role = role
        self.early_deaths = 0  # in a row
        self._slot = board.slot(number)
        self._reactor = reactor
        self._starting = starting
        self._child: Child | None = None
        self._not_before = self._started_at = 0.0
        self._leave_by: float | None = None

    @property
    def pid(self) -> int | None:
        """None while no process is running."""
        return None if self._child is None else self._child.pid

    def start(self, run: Callable[[Channel], int], now: float, keep: Iterable[int] = ()) -> bool:
        """Fork it. Returns False if no process can be started; `restart_at` is the time of the next attempt."""
        self._started_at, self._leave_by = now, None
        self._slot.assign(self.role, self.role)
        try:
            self._child = Child(run, role=self.role, keep=keep)
        except OSError as error:
            self._died_early(now)
            events(process="supervisor").error("fork_failed", of=self.role, error=error.strerror)
            return False
        self._reactor.watch(self._child.descriptor)
        return True

    @property
    def restart_at(self) -> float | None:
        """When a successor may start; None while one is running."""
        return self._not_before if self._child is None else None

    def due(self, now: float) -> bool:
        """Whether no process is running and a successor may start."""
        return self._child is None and now >= self._not_before

    def send(self, message: Message) -> None:
        """Send a message if the process is running."""
        if self._child is not None:
            self._child.channel.send(message)

    def hear(self) -> list[Message]:
        """The messages since the last call."""
        if self._child is None:
            return []
        self._child.channel.flush()
        return self._child.channel.hear() if self._reactor.is_readable(self._child.descriptor) else []

    def check(self, now: float) -> bool:
        """Clean up after an ended process, or kill one that hangs. Returns whether it has ended."""
        if self._child is None:
            return False
        if self._child.channel.closed:
            self._bury(self._child, now)
            return True
        if self._leave_by is not None and now > self._leave_by:
            self._child.kill()
        elif self._is_stuck(self._child.pid, now):
            events(process="supervisor").error(f"{self.role}_stuck", pid=self.pid)
            self._child.kill()
        return False

    def _is_stuck(self, pid: int, now: float) -> bool:
        """Whether there was no heartbeat for too long: it is stopped, or hangs in a call."""
        slot = self._slot.read()
        limit, late = STUCK_AFTER if slot.pid else self._starting, now - slot.beat
        return late > limit * _LONGER or (late > limit and kernel.is_stopped(pid))

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def dismiss(self, patience: float, *, finish: float = 0.0) -> None:
        """Ask it to end. It has `finish` seconds for what it has begun, and is killed after `patience` more."""
        self.send({"leave": finish})
        if self._leave_by is None:
            self._leave_by = time.monotonic() + finish + patience

    def retire(self) -> None:
        """Kill it now, for a successor with new orders."""
        if self._child is not None:
            self._leave_by = time.monotonic()
            self._bury(self._child, self._leave_by)

    def _bury(self, ended: Child, now: float) -> None:
        ended.kill()  # the channel may have ended before the process
        self._reactor.unwatch(ended.descriptor)
        ended.close()
        self._child = None
        events(process="supervisor").debug(f"{self.role}_gone", pid=ended.pid)
        if self._leave_by is not None:
            self._not_before = now  # it was asked to leave
            return
        if now - self._started_at >= _EARLY:
            self.early_deaths = 0
        self._died_early(now)
        events(process="supervisor").error(f"{self.role}_died", pid=ended.pid, in_a_row=self.early_deaths)

    def _died_early(self, now: float) -> None:
        self.early_deaths += 1
        again = self.early_deaths > 1  # the first time at once
        self._not_before = now + (backoff(_RESTART_PAUSE, self.early_deaths - 1, _LONGEST_PAUSE) if again else 0.0)
