"""What processes may use and have used, as the kernel counts it: memory, CPU time and the share of the cores.

Memory is that of our control group (version 2), else of the machine: its limit, and whether processes have been killed
for lack of it.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import suppress

# Imported by name: a worker calls these between a handler's end and its own check of the process.
from os import close, pread, write
from pathlib import Path
from resource import getrusage

from supervisor.system.kernel import file_of

_ROOT = Path("/")
_MOST = 64 << 10  # bytes; the longest of these files has some thousands


def available(root: Path = _ROOT) -> int:
    """Bytes that we may use: those of the machine, or what our control group or one around it allows, if less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    texts = [_read(file) for file in _files(root, "memory.max")]
    return min([total, *(int(text) for text in texts if text.strip().isdigit())])


class OomCounter:
    """Whether the kernel's out-of-memory killer has struck: a parent cannot see who killed its child. The kernel counts
    a kill before the victim dies; without the count of a control group, that of the whole machine is used.

    Call `look` every second or so; `struck` tells whether there was a kill since the look before the last. `forget`
    everything before, after a long time without a look.
    """

    def __init__(self, root: Path = _ROOT) -> None:
        files = [*_files(root, "memory.events"), root / "proc/vmstat"]
        self._file = next((file for file in files if _kills(file) is not None), None)
        self._before = self._latest = 0
        self.forget()

    def look(self) -> None:
        self._before, self._latest = self._latest, self._now()

    def forget(self) -> None:
        self._before = self._latest = self._now()

    def struck(self) -> bool:
        return self._now() > self._before

    def _now(self) -> int:
        """The count; the last known one if it cannot be read now."""
        count = None if self._file is None else _kills(self._file)
        return self._latest if count is None else count


def _kills(file: Path) -> int | None:
    """The number after `oom_kill`; None if the file is missing or does not contain it."""
    _, found, rest = (b"\n" + _read(file)).partition(b"\noom_kill ")
    number = rest.partition(b"\n")[0]
    return int(number) if found and number.isdigit() else None


def _files(root: Path, name: str) -> Iterator[Path]:
    """Where a file of our control group may be, and then of those around it, as far as they are mounted."""
    place = next((line.removeprefix("0::") for line in _lines(root / "proc/self/cgroup") if line.startswith("0::")), "")
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if after.startswith("cgroup2 ") and len(fields) > 4:
            # A container may see only a part of the tree, which starts at its own place.
            shown, mount = fields[3], fields[4]
            base = root / mount.lstrip("/")
            folder = base / place.removeprefix(shown.rstrip("/")).lstrip("/")
            for one in (folder, *folder.parents[: len(folder.parts) - len(base.parts)]):
                yield one / name


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _read(file: Path) -> bytes:
    """Its beginning; nothing if it cannot be read. Only system calls: this runs once a second."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(descriptor, _MOST)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


_FORGET_PEAK = b"5"  # to clear_refs: restart the peak from now; nothing else changes
_TICK = os.sysconf("SC_CLK_TCK")


class Meter:
    """The CPU time and the peak memory of one of our processes, which may end at any time."""

    def __init__(self, pid: int) -> None:
        self._stat = _opened_once(f"/proc/{pid}/stat", os.O_RDONLY)
        self._status = _opened_once(f"/proc/{pid}/status", os.O_RDONLY)
        self._clear = _opened_once(f"/proc/{pid}/clear_refs", os.O_WRONLY)
        self._file = file_of(self._clear)
        self._before = 0

    def cpu(self) -> float:
        """Seconds, user and system, of the process and its reaped children; 0 if it is gone.

        In the kernel's ticks of 10 ms.
        """
        fields = _read_again(self._stat).rpartition(b")")[2].split()
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
        _, found, rest = _read_again(self._status).partition(b"\nVmHWM:")
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


def _opened_once(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except OSError:
        return -1


def _read_again(descriptor: int) -> bytes:
    try:
        return pread(descriptor, 4096, 0)
    except OSError:  # ESRCH: the process is gone
        return b""


# The kernel's groups of sessions: where they are on, the nice value of a process holds only within its session. Each
# session then gets an equal share of the cores, and a nice value of its own says how large that is: see "The
# autogroup feature" in sched(7). It is without effect where the control group of the process has a share of its own.

AUTOGROUP_ENABLED = Path("/proc/sys/kernel/sched_autogroup_enabled")
_OWN_AUTOGROUP = "/proc/self/autogroup"
_PATIENCE = 2.0  # seconds: the kernel lets all users together change ten of them a second
_TRY_AGAIN = 0.03  # seconds


def set_nice_of_session(nice: int) -> None:
    """Give the session of this process a nice value, if the kernel groups sessions.

    If more than twenty workers start at once, the kernel may refuse some of them: these keep an equal share.
    """
    deadline = time.monotonic() + _PATIENCE
    with suppress(OSError):  # this kernel has no such groups
        if AUTOGROUP_ENABLED.read_bytes().strip() != b"1":
            return
        own = os.open(_OWN_AUTOGROUP, os.O_WRONLY | os.O_CLOEXEC)
        try:
            while not _nice_written(own, nice) and time.monotonic() < deadline:
                time.sleep(_TRY_AGAIN)
        finally:
            os.close(own)


def _nice_written(own: int, nice: int) -> bool:
    try:
        return bool(os.write(own, str(nice).encode()))
    except BlockingIOError:
        return False
