"""Signals: handlers only record and wake; a loop acts on them when it gets there."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from types import FrameType

# What the supervisor sends its workers, always through a pidfd. TERM and INT are not among them: those
# also arrive from a terminal or a cgroup, and are meant for the supervisor. Nor are USR1 and USR2: handlers and their
# libraries use those.
DUMP_STACKS = signal.SIGRTMIN + 1  # faulthandler writes every thread's stack to stderr
DRAIN = signal.SIGRTMIN + 2  # check the slot: finish the current job, then exit
INTERRUPT = signal.SIGRTMIN + 3  # the job named in the slot's cancel request must stop

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
