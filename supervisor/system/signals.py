"""What wakes a loop: signals, whose handlers only record and wake, readable descriptors, and times."""

from __future__ import annotations

import os
import selectors
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType

# What the supervisor sends its workers, always through a pidfd. TERM and INT are not among them: those
# also arrive from a terminal or a cgroup, and are meant for the supervisor. Nor are USR1 and USR2: handlers and their
# libraries use those.
_FIRST = getattr(signal, "SIGRTMIN", 0)  # no other system has them, and there nothing is supervised
DUMP_STACKS = _FIRST + 1  # faulthandler writes every thread's stack to stderr
DRAIN = _FIRST + 2  # check the slot: finish the current job, then exit
INTERRUPT = _FIRST + 3  # the job named in the slot's cancel request must stop

EVERY = frozenset(signal.valid_signals())


def block_all() -> None:
    """Block signals around a fork, so that none reaches a child before its handlers are installed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, EVERY)


def unblock_all() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, EVERY)


class Inbox:
    """Collects signals for one process. `fileno` becomes readable when one has arrived.

    `obeyed` are reported by `take`; `ignored` are swallowed by a handler that does nothing, because
    SIG_IGN would be inherited by programs that a handler starts, and those would not stop at TERM.
    """

    def __init__(self, obeyed: Iterable[int], ignored: Iterable[int] = ()) -> None:
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._arrived: list[int] = []
        for number in obeyed:
            signal.signal(number, self._record)
        for number in ignored:
            signal.signal(number, swallow)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def _record(self, number: int, frame: FrameType | None) -> None:
        self._arrived.append(number)

    def fileno(self) -> int:
        return self._reader

    def take(self) -> list[int]:
        """The signals since the last call, in order."""
        try:
            while os.read(self._reader, 512):
                pass
        except BlockingIOError:
            pass
        taken, self._arrived = self._arrived, []
        return taken

    @property
    def wakeup(self) -> int:
        """The descriptor that signals are written to."""
        return self._writer


def swallow(number: int, frame: FrameType | None) -> None:
    """The handler of a signal that is not meant for this process."""


def name_of(number: int) -> str:
    """SIGKILL for 9; for people and logs."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def ending(code: int) -> str:
    """`exit code 3`, or the signal's name; of what Python calls the return code of a process."""
    return f"exit code {code}" if code >= 0 else name_of(-code)


class Reactor:
    """A selector that allows unwatching twice: a dead process's descriptors end in any order."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._readable: frozenset[int] = frozenset()

    def watch(self, descriptor: int, callback: Callable[[], None] | None = None) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        if descriptor >= 0 and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Sleep until a descriptor is readable, for at most this many seconds."""
        events = self._selector.select(max(0.0, seconds))
        self._readable = frozenset(key.fd for key, _ in events)
        for key, _ in events:
            # An earlier callback may have unwatched it.
            if key.data is not None and key.fd in self._selector.get_map():
                key.data()

    def is_readable(self, descriptor: int) -> bool:
        """Whether the last wait found it so: reading it otherwise would cost a system call that finds nothing."""
        return descriptor in self._readable


GAP = 0.02  # minimum seconds between two passes for the same source

Source = Callable[[], Iterable[float | None]]
"""The times that a source waits for, in monotonic seconds; None for none."""


@dataclass(slots=True)
class _Timer:
    moments: Source
    rung: set[float] = field(default_factory=set)  # past times for which the loop was woken
    rung_at: float = float("-inf")

    def sleep(self, now: float) -> float:
        moments = {at for at in self.moments() if at is not None}
        self.rung &= moments
        passed = {at for at in moments if at <= now} - self.rung
        ahead = min((at - now for at in moments if at > now), default=float("inf"))
        if not passed:
            return ahead
        if now < self.rung_at + GAP:
            return min(ahead, self.rung_at + GAP - now)
        self.rung |= passed
        self.rung_at = now
        return 0.0


class Timers:
    """The only place that computes the loop's sleep: everything that waits for a time is a source here.

    A time wakes the loop while it is in the future, and once when it has passed. If its source does not change it, it
    has no further effect; and a source that names one past time after another gets a pass every GAP seconds. So a
    forgotten time cannot make the loop spin.
    """

    def __init__(self) -> None:
        self._timers: dict[str, _Timer] = {}

    def add(self, name: str, moments: Source) -> None:
        self._timers[name] = _Timer(moments)

    def sleep(self, now: float) -> float:
        """Seconds until the next pass; infinite if no source waits for a time."""
        return min((timer.sleep(now) for timer in self._timers.values()), default=float("inf"))
