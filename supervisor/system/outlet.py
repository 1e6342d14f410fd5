"""A stream for events that never blocks and never fails, even if nobody reads it."""

from __future__ import annotations

import os
import select
import socket
import stat
from collections.abc import Callable
from time import monotonic

BACKLOG_BYTES = 1 << 20  # kept for a slow reader; beyond that, the newest is dropped
_ATOMIC = select.PIPE_BUF

_Write = Callable[[bytes], int]


class Outlet:
    """Writes to a descriptor, usually stderr. What its reader does not take now is kept, up to BACKLOG_BYTES.

    The open file may be shared with others (a terminal with the shell), so its flags stay as they are: a pipe is
    opened a second time, a socket is written to without blocking. The child of a fork starts without a backlog.
    """

    def __init__(self, descriptor: int = 2) -> None:
        self._descriptor = descriptor
        self._open()

    def _open(self) -> None:
        self._pid = os.getpid()
        self._backlog = bytearray()
        self.lost = 0  # bytes dropped, in all
        self._told = 0  # of these
        self._write: _Write = _writer(self._descriptor)

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        self.put(text.encode("utf-8", "backslashreplace"))
        return len(text)

    def put(self, data: bytes) -> None:
        if os.getpid() != self._pid:
            self._open()
        if len(self._backlog) + len(data) > BACKLOG_BYTES:
            self.lost += len(data)
        else:
            self._backlog += data
        self.flush()

    def flush(self) -> None:
        """Write what the reader takes now."""
        while self._backlog and os.getpid() == self._pid:
            try:
                written = self._write(bytes(self._backlog[:65536]))
            except (BlockingIOError, InterruptedError):
                return
            except OSError:  # nobody reads it, or the disk is full
                self.lost += len(self._backlog)
                self._backlog.clear()
                return
            if not written:
                return
            del self._backlog[:written]

    @property
    def waiting(self) -> bool:
        return bool(self._backlog)

    def tell_lost(self, tell: Callable[[int], object]) -> None:
        """Call `tell` with the number of bytes dropped since the last call, unless the reader still takes none."""
        if not self._backlog and self.lost > self._told:
            tell(self.lost - self._told)
            self._told = self.lost  # also if what was told was dropped: otherwise it would be told of again


class Ration:
    """Limits the bytes per second to a stream. Beyond the limit, whole texts are dropped. This is reported once a
    second, and at the end, on a line of its own: `tell` is called with the number of bytes dropped.
    """

    def __init__(self, stream: Outlet, bytes_a_second: int, tell: Callable[[int], object]) -> None:
        self._stream = stream
        self._most = bytes_a_second
        self._tell = tell
        self._second = monotonic()  # when the current second started
        self._passed = self._dropped = 0
        self._mid_line = False  # what was passed on last has no line break at its end

    def write(self, text: str) -> None:
        self.put(text.encode("utf-8", "backslashreplace"))

    def put(self, data: bytes) -> bool:
        """Returns False if it was dropped."""
        self.tell_dropped()
        if self._passed + len(data) > self._most:
            self._dropped += len(data)
            return False
        self._passed += len(data)
        self._mid_line = not data.endswith(b"\n")
        self._stream.put(data)
        return True

    def flush(self) -> None:
        self._stream.flush()

    def tell_dropped(self) -> None:
        """Must also be called now and then: a writer that exceeds the limit may stop writing."""
        now = monotonic()
        if now - self._second >= 1.0:
            self._second, self._passed = now, 0
            self.tell_rest()

    def tell_rest(self) -> None:
        """Report at once what was dropped since the last report."""
        dropped, self._dropped = self._dropped, 0
        if dropped:
            if self._mid_line:
                self.put(b"\n")
            self._tell(dropped)


def _writer(descriptor: int) -> _Write:
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return len  # closed
    if stat.S_ISREG(mode):
        return lambda data: os.write(descriptor, data)
    if stat.S_ISSOCK(mode):
        end = socket.socket(fileno=os.dup(descriptor))
        return lambda data: end.send(data, socket.MSG_DONTWAIT)
    try:
        again = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # it belongs to another user, or nobody reads it any more
        return lambda data: _write_what_fits(descriptor, data)
    return lambda data: os.write(again, data)


def _write_what_fits(descriptor: int, data: bytes) -> int:
    """A pipe that is ready takes this much at once."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return os.write(descriptor, data[:_ATOMIC]) if poll.poll(0) else 0
