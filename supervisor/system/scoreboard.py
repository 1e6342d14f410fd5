"""The scoreboard: one mapped file in which every worker shows what it is doing.

The term and the idea come from Apache httpd. One slot per worker. The worker writes it; the supervisor assigns and
clears it, and writes the cancel requests. Single words are written atomically, so a reader never sees half a number;
a job is published by writing its token first and its id last. A heartbeat costs no system call and no transaction.

Layout: a header, then MAX_SLOTS slots of SLOT_BYTES, then the supervisor's status (JSON: pools, their
targets and the reasons). All words are 8 bytes; times are CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import ctypes
import errno
import json
import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from time import CLOCK_BOOTTIME, clock_gettime
from typing import Annotated, Any

from supervisor.system.mappings import fields_from_annotations
from supervisor.system.slot import PRESENT, SLOT_BYTES, Slot, Snapshot, pool_of

MAGIC = 0x4A4F4253_00000003  # with another layout, another number
HEADER_BYTES = 4096
MAX_SLOTS = 1024
STATUS_BYTES = 256 * 1024
_MOST_STATUS = STATUS_BYTES - 8
_STATUS_AT = HEADER_BYTES + SLOT_BYTES * MAX_SLOTS
SIZE = _STATUS_AT + STATUS_BYTES

# Slot 0 is the maintainer's, the end of the header is the admin process's: only pid and beat are used.
MAINTAINER_SLOT = 0
ADMIN_SLOT = -1


def run_logs_of(scoreboard: Path) -> Path:
    """The file in which its workers capture the output of their runs; it does not exist before the first run."""
    return Path(f"{scoreboard}.run-logs")


def chunks_of(scoreboard: Path) -> Path:
    """The file in which its workers keep what their runs emit; it does not exist before the first chunk."""
    return Path(f"{scoreboard}.chunks")


def counters_of(scoreboard: Path) -> Path:
    """The file in which its workers and the maintainer count finished runs."""
    return Path(f"{scoreboard}.counters")


def files_of(scoreboard: Path) -> tuple[Path, ...]:
    """All these, as far as they exist, and the scoreboard."""
    return run_logs_of(scoreboard), chunks_of(scoreboard), counters_of(scoreboard), scoreboard


def boot_time() -> float:
    """Seconds that also count while the machine is suspended, and that nobody sets."""
    return clock_gettime(CLOCK_BOOTTIME)


@fields_from_annotations
class ClaimGate(ctypes.Structure):
    """Whether the workers of this supervisor may claim now, and what time it is: written by the maintainer, read by any
    process. Without a lease to renew it is open, unless drained.

    With a server, a supervisor may claim only while it has a lease: other hosts give its jobs away when that has ended.
    The maintainer renews it and notes here until when it certainly holds, so it ends for the workers even if nobody is
    left to tell them. They also take the time from here, since several hosts must agree on it.
    """

    needed: int  # with a lease to renew, closed until one is noted
    until: float  # the lease holds, by `boot_time`
    ahead: float  # the server's clock, of `boot_time`; 0 without a server
    generation: int  # another one: the workers must register again, others may have taken this supervisor for dead
    drained: int
    watched: float  # the maintainer's last pass that has found all its duties well, by the monotonic clock

    def is_open(self) -> bool:
        """Whether jobs may be claimed now. Cheap: asked before every claim."""
        return not self.drained and not self.lapsed

    @property
    def lapsed(self) -> bool:
        """Whether there is a lease to renew, and it may have ended."""
        return bool(self.needed) and boot_time() >= self.until

    def now(self) -> float:
        """Unix seconds: the server's, if there is one, otherwise this machine's."""
        ahead = self.ahead
        return ahead + boot_time() if ahead else time.time()

    @property
    def clock(self) -> Callable[[], float]:
        """`now`, or what is quicker and means the same."""
        return self.now if self.needed else time.time

    def renewed(self, until: float, ahead: float, *, again: bool) -> None:
        """There is a lease until then. `again`: others may have given its jobs away in the meantime."""
        if again:
            self.generation += 1
        self.ahead = ahead
        self.until = until


@fields_from_annotations
class _Header(ctypes.Structure):
    magic: int
    highest: int  # the highest slot that was ever used
    gate: Annotated[ClaimGate, ClaimGate]


class Scoreboard:
    """The mapped file. Create it with `create`, read another process's with `open`."""

    def __init__(self, path: Path, mapped: mmap.mmap) -> None:
        self.path = path
        self._view = memoryview(mapped)
        self._header = _Header.from_buffer(mapped)
        self.gate = self._header.gate
        self._slots: dict[int, Slot] = {}
        self._posted: dict[str, Any] = {}

    @classmethod
    def create(cls, path: Path) -> Scoreboard:
        """Create the file (mode 0600) and map it. Raises OSError if there is no room for it.

        All of it is allocated now: the first write to a missing page kills the process on a full disk.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.pwrite(descriptor, bytes(SIZE), 0) < SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            board = cls(path, mmap.mmap(descriptor, SIZE))
        finally:
            os.close(descriptor)
        board._header.magic = MAGIC
        return board

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Scoreboard | None:
        """Map an existing one; None if it is gone or is none: the path may name anything, like a pipe or a link.
        Without `writable`, what is written here stays here.
        """
        mode = os.O_RDWR if writable else os.O_RDONLY
        try:
            descriptor = os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError):
            return None
        try:
            if os.fstat(descriptor).st_size != SIZE:
                return None
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_COPY
            board = cls(path, mmap.mmap(descriptor, SIZE, access=access))
        finally:
            os.close(descriptor)
        return board if board._header.magic == MAGIC else None

    @property
    def highest(self) -> int:
        """The highest slot that was ever used."""
        return self._header.highest

    def use_up_to(self, number: int) -> None:
        self._header.highest = max(number, self.highest)

    def slot(self, number: int) -> Slot:
        if number not in self._slots:
            if not ADMIN_SLOT <= number < MAX_SLOTS:
                raise ValueError(f"there is no slot {number}; the scoreboard has {MAX_SLOTS}")
            at = HEADER_BYTES + number * SLOT_BYTES
            self._slots[number] = Slot(self._view[at : at + SLOT_BYTES])
        return self._slots[number]

    def find(self, incarnation: str, number: int) -> Snapshot | None:
        """The slot of a worker, if it still belongs to that worker."""
        snapshot = self.slot(number).read()
        return snapshot if snapshot.incarnation == incarnation else None

    def present(self) -> Iterator[tuple[int, Snapshot]]:
        """The workers that exist, by their slots."""
        slots = ((number, self.slot(number).read()) for number in range(1, self.highest + 1))
        return ((number, slot) for number, slot in slots if slot.state in PRESENT)

    def idle(self) -> Counter[str]:
        """The number of idle workers of each pool; nothing else of their slots is copied."""
        found = Counter[str]()
        for number in range(1, self.highest + 1):
            if (page := self.slot(number).page).is_idle:
                found[pool_of(page.name)] += 1
        return found

    def post(self, supervisor_status: dict[str, Any]) -> None:
        """Show the supervisor's own status, if it has changed. What does not fit is cut, and `clipped` says so.
        The length is 0 while it is being written.
        """
        if supervisor_status == self._posted:
            return
        self._posted = supervisor_status
        data = _fitting(supervisor_status)
        at = _STATUS_AT
        self._view[at : at + 8] = bytes(8)
        self._view[at + 8 : at + 8 + len(data)] = data
        self._view[at : at + 8] = len(data).to_bytes(8, "little")

    def supervisor_status(self) -> dict[str, Any]:
        """What was posted; empty if nothing was, or if the supervisor died while it wrote."""
        view = self._view[_STATUS_AT:]
        for _ in range(100):
            size = int.from_bytes(view[:8], "little")
            try:
                status = json.loads(bytes(view[8 : 8 + size]))
            except ValueError:
                time.sleep(0.001)
                continue
            return status if isinstance(status, dict) else {}
        return {}


def _fitting(status: dict[str, Any]) -> bytes:
    """The supervisor's status as JSON that fits. One that does not is cut: its texts and lists; if that is not enough,
    what it tells of pools and the like is left out.
    """
    data = json.dumps(status).encode()
    if len(data) > _MOST_STATUS:
        data = json.dumps(_cut(status) | {"clipped": True}).encode()
    if len(data) > _MOST_STATUS:
        data = json.dumps({key: _cut(value, 0) for key, value in status.items()} | {"clipped": True}).encode()
    return data


def _cut(value: Any, items: int = 20) -> Any:
    if isinstance(value, str):
        return value if len(value) <= 300 else f"{value[:299]}…"
    if isinstance(value, list):
        return [_cut(item) for item in value[:items]]
    if isinstance(value, dict):  # readers rely on its keys
        return {key: _cut(item) for key, item in value.items()} if items else {}
    return value
