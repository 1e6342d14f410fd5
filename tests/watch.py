"""What a supervisor uses while a test waits for something, and what is left of it when it has stopped.

A loop that never sleeps shows in no row and no log. It wants the CPU all the time, whether it gets it or waits
for its turn on a loaded machine: the kernel counts both, so that is asked and not the CPU time alone. Looks are
made by whoever waits, see `wait_for`; no thread, since tests fork.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

WINDOW = 1.5  # seconds between two looks that are compared
BUSY = 0.9  # of the time: with so little sleep it is a loop that does not wait
LEAST_CPU = 0.1  # of a window, which it must really have had: a busy machine has many others
MOST_CPU = 0.6  # of the time, by the supervisor, however many jobs and deaths there are
DESCRIPTORS = 24  # that a supervisor may have open beside those below
EACH_WORKER = 4  # its pidfd and its stderr; as much again for one that is about to be reaped
EACH_CHILD = 4  # a template's, the maintainer's or the admin process's pidfd and channel


class Used(NamedTuple):
    """Seconds since a process has begun to live: on a CPU, and waiting for one."""

    at: float
    cpu: float
    waited: float


def used(pid: int) -> Used | None:
    with contextlib.suppress(OSError, ValueError):
        running, waiting, _ = Path(f"/proc/{pid}/schedstat").read_text().split()
        return Used(time.monotonic(), int(running) / 1e9, int(waiting) / 1e9)
    return None


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def family(pid: int) -> Iterator[int]:
    """All descendants of a process. To ask every process for its parent, as psutil does, takes ten times as long."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (thread / "children").read_text().split())
    for child in found:
        yield child
        yield from family(child)


def descriptors(pid: int) -> int:
    with contextlib.suppress(OSError):
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0


class Watch:
    """One supervisor from the time on at which it has recovered."""

    def __init__(self, pid: int, window: float = WINDOW) -> None:
        self.pid = pid
        self._window = window
        self.wrong: list[str] = []
        self._busy = False  # in the window before
        self._last = used(pid)

    def look(self) -> None:
        """Cheap, and may be called as often as one likes."""
        if self._last is None or time.monotonic() - self._last.at < self._window:
            return
        before, self._last = self._last, used(self.pid)
        if self._last is not None:
            self._judge(before, self._last)

    def _judge(self, before: Used, now: Used) -> None:
        wall, cpu = now.at - before.at, now.cpu - before.cpu
        wanted = (cpu + now.waited - before.waited) / wall
        loops = wanted > BUSY and cpu > LEAST_CPU * self._window
        before_busy, self._busy = self._busy, loops or cpu / wall > MOST_CPU
        if self._busy and before_busy:  # a burst of deaths is over sooner
            self.wrong.append(
                f"supervisor {self.pid} used {cpu:.2f} s of CPU in {wall:.2f} s, and wanted {wanted:.0%} of the time"
            )

    def end(self) -> list[str]:
        """All that was wrong until now; before it is stopped."""
        self.look()
        direct = children(self.pid)
        workers = sum(len(children(child)) for child in direct)
        most = DESCRIPTORS + EACH_CHILD * len(direct) + EACH_WORKER * workers
        has = descriptors(self.pid)
        if has > most:
            self.wrong.append(f"supervisor {self.pid} has {has} descriptors open with {workers} workers")
        return self.wrong


watches: list[Watch] = []  # of all that run now


def look_around() -> None:
    for watch in watches:
        watch.look()


def left_behind(folder: Path) -> list[str]:
    """Files of supervisors that should have been removed by those that made them."""
    patterns = ("scoreboard-*", "owner-*")
    return sorted(path.name for pattern in patterns for path in folder.glob(pattern))
