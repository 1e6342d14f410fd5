"""A supervisor's end is its workers' end, in whatever state they and their template are.

The supervisor alone holds the writing end of a pipe, so the pipe ends with it however it ends. Each worker opens the
reading end anew, for signals are set up with the open file and not with the descriptor, and has the kernel kill it
then (`fcntl(2)`, F_SETSIG). That also ends a worker that is stopped, or whose interpreter's lock is held by native
code, beside a template that is in no state to end it.
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
    """The descriptors that a forked child keeps, so that it, or what it forks, can arm itself."""
    return () if _reader < 0 else (_reader,)


def arm() -> None:
    """Have the kernel kill this process at the supervisor's end; leave at once if that has come already.

    Without a supervisor that holds the line, or a /proc to reach it by, nothing happens.
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
    # It may have ended before this was armed.
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
    """In that program: what it starts itself does not inherit the line."""
    global _armed
    with contextlib.suppress(OSError):
        os.set_inheritable(descriptor, False)
        _armed = descriptor
