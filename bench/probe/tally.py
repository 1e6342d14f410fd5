"""What every contestant's handler notes, whoever calls it: the same few instructions for all of them.

`mark` counts a job in a small mapped file, one a process, so that a run is timed from the first job taken
to the last without asking the contestant. `arrive` tells through a named pipe that a handler has begun.
Times are CLOCK_MONOTONIC seconds, which all processes of the machine share.

Loaded by the peers' programs in environments of their own: nothing beyond the standard library.
"""

from __future__ import annotations

import mmap
import os
import select
import struct
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = "BENCH_TALLY"  # the environment variable that names the folder of the counts
PIPE = "BENCH_ARRIVALS"  # and the named pipe of the arrivals
RELEASED = "released"  # the file in the folder of the counts for which slow handlers wait
BEGUN, ENDED = 1, 2  # what slow handlers tell in place of a number
_FIRST, _LAST, _COUNT, _LONGEST = range(4)
_BYTES = 32
_ARRIVAL = struct.Struct("<qqd")  # number, pid, time

_cells: memoryview[float] | None = None
_pipe = -1
_monotonic = time.monotonic


class Arrival(NamedTuple):
    """One handler's first line."""

    number: int
    pid: int
    at: float


class Count(NamedTuple):
    """The jobs of all processes together; `longest` is the longest time between two jobs of one process."""

    processes: int
    jobs: int
    first: float
    last: float
    longest: float
    starts: tuple[float, ...]  # of each process, its first job

    @property
    def rate(self) -> float:
        """Jobs a second from the first job taken to the last."""
        return (self.jobs - 1) / (self.last - self.first)


# In the handler


def mark() -> None:
    """Count one job of this process."""
    cells = _cells
    if cells is None:
        cells = _open()
    now = _monotonic()
    waited = now - cells[_LAST]
    if waited > cells[_LONGEST]:
        cells[_LONGEST] = waited
    cells[_LAST] = now
    cells[_COUNT] += 1


def arrive(number: int) -> None:
    """Say that the handler of this job has begun."""
    global _pipe
    now = _monotonic()
    if _pipe < 0:
        _pipe = os.open(os.environ[PIPE], os.O_WRONLY)
    os.write(_pipe, _ARRIVAL.pack(number, os.getpid(), now))


def slow() -> None:
    """Go on until the benchmark releases it; at once, if that has been."""
    arrive(BEGUN)
    while not Path(os.environ[FOLDER], RELEASED).exists():
        time.sleep(0.02)
    arrive(ENDED)


def _open() -> memoryview[float]:
    global _cells
    path = Path(os.environ[FOLDER], f"{os.getpid()}.tally")
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.ftruncate(descriptor, _BYTES)
    cells = memoryview(mmap.mmap(descriptor, _BYTES)).cast("d")
    os.close(descriptor)
    if not cells[_COUNT]:  # else another process had this pid before: its count goes on
        cells[_FIRST] = _monotonic()
    cells[_LAST] = _monotonic()
    _cells = cells
    return cells


def _forget() -> None:
    global _cells, _pipe
    _cells, _pipe = None, -1


os.register_at_fork(after_in_child=_forget)


# In the benchmark


def read(folder: Path) -> Count:
    """What the processes have counted so far."""
    found = [struct.unpack("4d", path.read_bytes()[:_BYTES].ljust(_BYTES, b"\0")) for path in folder.glob("*.tally")]
    rows = [row for row in found if row[_COUNT]]
    if not rows:
        return Count(0, 0, 0.0, 0.0, 0.0, ())
    return Count(
        processes=len(rows),
        jobs=int(sum(row[_COUNT] for row in rows)),
        first=min(row[_FIRST] for row in rows),
        last=max(row[_LAST] for row in rows),
        longest=max(row[_LONGEST] for row in rows),
        starts=tuple(sorted(row[_FIRST] for row in rows)),
    )


class Arrivals:
    """The reading end of the named pipe, which is made here."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            os.mkfifo(path, 0o600)
        # Also open for writing, so that it never ends while no handler has it open.
        self._descriptor = os.open(path, os.O_RDWR)

    def next(self, patience: float) -> Arrival:
        """The next handler that begins. Raises TimeoutError after `patience` seconds."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLIN)
        if not poll.poll(patience * 1000):
            raise TimeoutError(f"no handler has begun within {patience:g} s")
        return Arrival._make(_ARRIVAL.unpack(os.read(self._descriptor, _ARRIVAL.size)))

    def close(self) -> None:
        os.close(self._descriptor)
