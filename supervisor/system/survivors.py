"""End processes that are not our children, each identified by its pid and start time."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from supervisor.system import ending, kernel

Processes = Mapping[int, int]  # pid to start_ticks


def resume(processes: Processes) -> None:
    """Resume those that are stopped."""
    for pid, started in processes.items():
        with _opened(pid, started) as pidfd:
            if pidfd is not None:
                ending.send_signal(pidfd, signal.SIGCONT)


def end(processes: Processes, patience: float) -> Processes:
    """Kill them, and wait until they have ended, for at most this many seconds. Returns those that have not."""
    return wait({pid: started for pid, started in processes.items() if _kill(pid, started)}, patience)


def wait(processes: Processes, patience: float) -> Processes:
    """Wait until all have ended, for at most this many seconds. Returns those that have not."""
    deadline = time.monotonic() + patience
    left = {}
    for pid, started in processes.items():
        with _opened(pid, started) as pidfd:
            if pidfd is not None and not _ended(pidfd, max(0.0, deadline - time.monotonic())):
                left[pid] = started
    return left


def _kill(pid: int, started: int) -> bool:
    """Whether it may still exist."""
    with _opened(pid, started) as pidfd:
        return pidfd is not None and ending.send_signal(pidfd, signal.SIGKILL) is not ending.Sent.GONE


def _ended(pidfd: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


@contextmanager
def _opened(pid: int, started: int) -> Iterator[int | None]:
    """A descriptor of exactly this process; None if it has ended, even if its number is in use again."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        yield None
        return
    try:
        # After opening: if the number still belongs to that process now, it did when we opened it.
        yield pidfd if kernel.start_ticks(pid) == started else None
    finally:
        os.close(pidfd)
