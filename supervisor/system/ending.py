"""Signals to our processes. They may have ended, or may have become another user's, for example by sudo.

Only root can signal such a process. It is logged once, and not waited for.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from supervisor.system import kernel

KILL_PATIENCE = 5.0  # seconds for killed processes to end
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.0002, 0.02
_MOST_NAMED = 1000

_logged: set[tuple[int, int]] = set()  # logged already: pid and start
_given_up: dict[int, int | None] = {}  # children that did not end when they were killed: start by pid


class Sent(Enum):
    """The result of sending a signal."""

    SENT = "sent"
    GONE = "gone"  # the process has ended
    REFUSED = "refused"  # it belongs to another user now


def send_signal(pidfd: int, number: int) -> Sent:
    """Signal exactly the process that the descriptor refers to."""
    return _send(lambda: signal.pidfd_send_signal(pidfd, number), lambda: _pid_of(pidfd))


def signal_child(pid: int, number: int) -> Sent:
    """Signal a child of our own that is not reaped: its number cannot belong to another process."""
    return _send(lambda: os.kill(pid, number), lambda: pid)


def signal_group(pid: int, number: int) -> Sent:
    """The same for the process group that such a child leads, or has led. REFUSED: none of them could be signalled."""
    return _send(lambda: os.killpg(pid, number), lambda: pid)


def _send(send: Callable[[], None], pid: Callable[[], int]) -> Sent:
    try:
        send()
    except ProcessLookupError:
        return Sent.GONE
    except PermissionError:
        _log_refused(pid())
        return Sent.REFUSED
    return Sent.SENT


def _pid_of(pidfd: int) -> int:
    """0 if unknown."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path(f"/proc/self/fdinfo/{pidfd}").read_text(encoding="ascii").splitlines()
        return max(0, next(int(line.split()[1]) for line in lines if line.startswith("Pid:")))
    return 0


def _log_refused(pid: int) -> None:
    """Log a process that cannot be signalled, once; not one that has ended and is only not reaped yet."""
    started = kernel.start_ticks(pid) if pid else None
    if started is None or (pid, started) in _logged:
        return
    if len(_logged) >= _MOST_NAMED:
        _logged.clear()
    _logged.add((pid, started))
    _warn("signal_refused", pid, hint="it belongs to another user now: only that user or root can end it")


def kill_children(spare: frozenset[int] = frozenset(), patience: float = KILL_PATIENCE) -> int | None:
    """Kill and reap all our children except these, repeatedly until none is left: killing one orphans its own to us.

    Returns how many were killed, None if the children cannot be listed now. Never waits for a process that we may not
    kill. Waits at most `patience` seconds for the killed ones, and not a second time for the same process: it waits
    for a disk or a network, and ends when that responds.
    """
    killed: set[int] = set()
    refused: set[int] = set()
    until = time.monotonic() + patience
    pause = _SHORTEST_PAUSE
    while True:
        found = kernel.children(os.getpid())
        if found is None:
            return None
        targets = [pid for pid in found if pid not in spare and pid not in refused]
        for pid in targets:
            (refused if signal_child(pid, signal.SIGKILL) is Sent.REFUSED else killed).add(pid)
        gone = [_reaped(pid) for pid in targets]
        awaited = [pid for pid in targets if pid not in refused and not _is_given_up(pid)]
        if not awaited:
            return len(killed)
        if time.monotonic() > until:
            _give_up(awaited)
            return len(killed)
        if not any(gone):
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)


def _reaped(pid: int) -> bool:
    """Whether a child of ours has ended; if so, it is reaped."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _is_given_up(pid: int) -> bool:
    return pid in _given_up and _given_up[pid] == kernel.start_ticks(pid)


def _give_up(pids: list[int]) -> None:
    """These were killed and still run: they hang in the kernel."""
    if len(_given_up) >= _MOST_NAMED:
        _given_up.clear()
    for pid in pids:
        _given_up[pid] = kernel.start_ticks(pid)
        _warn("process_does_not_end", pid, hint="it was killed, and waits for a disk or a network")


def _warn(event: str, pid: int, **fields: str) -> None:
    import structlog  # imported here: rarely needed, and slow to import

    with contextlib.suppress(Exception):  # in a worker, a handler may have changed it in any way
        structlog.get_logger(pid=os.getpid()).error(event, process=pid, command=kernel.command_of(pid), **fields)
