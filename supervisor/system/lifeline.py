"""When a supervisor ends, its workers end, whatever state they and their template are in.

The supervisor alone holds the write end of a pipe, so the pipe ends with it, however it ends. Each worker opens the
read end again, because signals are configured per open file and not per descriptor, and has the kernel kill it at
the pipe's end (`fcntl(2)`, F_SETSIG). That also ends a worker that is stopped, or whose interpreter lock is held by
native code, while its template is unable to end it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal

_F_SETSIG = 10  # Linux; Python's fcntl lacks it

_reader = _writer = _armed = -1


def hold() -> None:
    """In the supervisor, before its first fork: from now on its workers live as long as it does. Raises OSError."""
    global _reader, _writer
    if _writer < 0:
        _reader, _writer = os.pipe2(os.O_CLOEXEC)


def inherited() -> tuple[int, ...]:
    """The descriptors that a forked child keeps, so that it, or what it forks, can call `arm`."""
    return () if _reader < 0 else (_reader,)


def arm() -> None:
    """Have the kernel kill this process when the supervisor ends; exit at once if it has already ended.

    Without a supervisor that called `hold`, or without /proc, nothing happens.
    """
    global _armed
    if _reader < 0:
        return
    try:
        _armed = os.open(f"/proc/self/fd/{_reader}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.fcntl(_armed, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(_armed, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(_armed, fcntl.F_SETFL, fcntl.fcntl(_armed, fcntl.F_GETFL) | os.O_ASYNC)
    except OSError:
        return
    # The supervisor may have ended before this took effect.
    poll = select.poll()
    poll.register(_armed, select.POLLIN)
    if any(event & select.POLLHUP for _, event in poll.poll(0)):
        os._exit(1)


def keep_over_exec() -> int:
    """Stay armed in the program that this process becomes. Returns the descriptor, -1 if there is none."""
    if _armed >= 0:
        os.set_inheritable(_armed, True)
    return _armed


def taken_over(descriptor: int) -> None:
    """In that program: what it starts itself does not inherit the descriptor."""
    global _armed
    with contextlib.suppress(OSError):
        os.set_inheritable(descriptor, False)
        _armed = descriptor
