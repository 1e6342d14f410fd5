"""The lines between a worker and its program: sent and read without blocking, whatever the program does."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NoReturn

from supervisor.system import signals
from supervisor.worker.program import Program
from supervisor.worker.protocol import Conversation, Event, Violation

CLOSING = 0.5  # seconds from the end of its replies to the program's own end, which gives a better reason
_GULP = 65536
_GULPS_BETWEEN = 64  # reads at most before a job; output of a program that keeps writing is read during the job


class Ended(Exception):
    """The program has ended, and everything that it sent before has been read."""


class ProgramLink:
    """What waits to be read by the program, and the `conversation` with it. INTERRUPT is blocked but in `_wait`."""

    def __init__(self, program: Program) -> None:
        self.conversation = Conversation()
        self._program = program
        self._pending = bytearray()  # what the program has not read yet
        self._silent = False  # its replies have ended
        self._poll = select.poll()
        self._poll.register(program.replies, select.POLLIN)
        self._poll.register(program.pidfd, select.POLLIN)

    def send(self, line: bytes) -> None:
        """It is written while `next` waits."""
        self._pending += line

    @property
    def untaken(self) -> int:
        """Bytes sent to the program that it has not read; they can be counted even after its death."""
        return len(self._pending) + self._program.untaken()

    def next(self, until: float) -> Event | None:
        """The program's next message; None if it has sent nothing until then. Raises Violation or Ended."""
        while (event := self.conversation.next()) is None:
            if self._silent:
                self._end_of_replies()
            left = until - time.monotonic()
            if left <= 0:
                return None
            self._exchange(left)
        return event

    def read_between(self) -> Iterator[Event]:
        """What it has sent since its last job. Raises Violation or Ended if it will send nothing more."""
        dead = self._program.wait(0)
        for _ in range(_GULPS_BETWEEN):
            more = self._read(dead)
            while (event := self.conversation.next()) is not None:
                yield event
            if not more:
                break
        if self._silent:
            self._end_of_replies()

    def part(self, until: float) -> None:
        """Say bye, and wait until then for the program to end."""
        self.send(self.conversation.bye())
        with suppress(Violation, Ended):
            while (left := until - time.monotonic()) > 0:
                self._exchange(left)
                if not self._pending:
                    self._program.close_requests()

    def _exchange(self, seconds: float) -> None:
        """Wait until the program writes, reads or ends, and do one step of each."""
        if self._silent:
            self._end_of_replies()
        wanted = bool(self._pending) and self._program.requests >= 0
        if wanted:
            self._poll.register(self._program.requests, select.POLLOUT)
        try:
            ready = self._wait(seconds)
        finally:
            if wanted:
                self._poll.unregister(self._program.requests)
        if self._program.requests in ready:
            self._write()
        dead = self._program.pidfd in ready
        if dead or self._program.replies in ready:
            self._read(dead)

    def _wait(self, seconds: float) -> set[int]:
        """The only place where an interruption may happen: no operation is half done here."""
        before = signal.pthread_sigmask(signal.SIG_UNBLOCK, {signals.INTERRUPT})
        try:
            return {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _write(self) -> None:
        try:
            del self._pending[: os.write(self._program.requests, self._pending[:_GULP])]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._silent = True  # a program that closes its requests has nothing more to say

    def _read(self, dead: bool) -> bool:
        """Whether there was data. `dead`: the program had ended before, so there will be no more."""
        try:
            data = os.read(self._program.replies, _GULP)
        except BlockingIOError:
            self._silent = dead  # though other processes may hold its replies open
            return False
        self.conversation.hear(data)
        self._silent = self._silent or not data
        return bool(data)

    def _end_of_replies(self) -> NoReturn:
        """Nothing more will come. Raises Ended for a program that has ended, Violation for one that has not."""
        if self._program.wait(CLOSING):
            raise Ended
        raise Violation("closed its replies or its requests, and continued to run")
