"""What a process has used, read often: the files in /proc stay open."""

from __future__ import annotations

import os
import resource

# Imported by name: a worker calls these between a handler's end and its own check of the process.
from os import close, pread, write
from resource import getrusage

from supervisor.system.kernel import file_of

_FORGET_PEAK = b"5"  # to clear_refs: restart the peak from now; nothing else changes
_TICK = os.sysconf("SC_CLK_TCK")


class Meter:
    """The CPU time and the peak memory of one of our processes, which may end at any time."""

    def __init__(self, pid: int) -> None:
        self._stat = _opened(f"/proc/{pid}/stat", os.O_RDONLY)
        self._status = _opened(f"/proc/{pid}/status", os.O_RDONLY)
        self._clear = _opened(f"/proc/{pid}/clear_refs", os.O_WRONLY)
        self._file = file_of(self._clear)
        self._before = 0

    def cpu(self) -> float:
        """Seconds, user and system, of the process and its reaped children; 0 if it is gone.

        In the kernel's ticks of 10 ms.
        """
        fields = _read(self._stat).rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICK

    def restart(self) -> None:
        """Restart the peak, if the kernel allows it."""
        try:
            if file_of(self._clear) == self._file:  # and not a file that a handler has opened in its place
                write(self._clear, _FORGET_PEAK)
        except OSError:  # /proc is read-only, or the process is gone
            self._before = self._high_water()

    def peak(self) -> int | None:
        """The most bytes that were resident at once since `restart`; None for a process that is gone.

        If the earlier peak could not be reset, also None, unless it was exceeded.
        """
        peak = self._high_water()
        return peak if peak > self._before else None

    def _high_water(self) -> int:
        _, found, rest = _read(self._status).partition(b"\nVmHWM:")
        return int(rest.split(maxsplit=1)[0]) * 1024 if found else 0

    def close(self) -> None:
        for descriptor in (self._stat, self._status, self._clear):
            if descriptor >= 0:
                close(descriptor)
        self._stat = self._status = self._clear = -1


def own_cpu() -> float:
    """Seconds of CPU, user and system, of this process and its reaped children."""
    own, reaped = getrusage(resource.RUSAGE_SELF), getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + reaped.ru_utime + reaped.ru_stime


def _opened(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return -1


def _read(descriptor: int) -> bytes:
    try:
        return pread(descriptor, 4096, 0)
    except OSError:  # ESRCH: the process is gone
        return b""
