"""The scoreboard: one mapped file in which every worker shows what it is doing.

The term and the idea are Apache httpd's. A slot a worker; only that worker writes it, except for the
cancel requests. Single words are written at once, so a reader never sees half a number; a job is published
by writing its token first and its id last. A heartbeat costs no system call and no transaction.

Layout: a header, then MAX_SLOTS slots of SLOT_BYTES, then the supervisor's bulletin (JSON: pools, their
targets and why). All words are 8 bytes in the machine's byte order; times are CLOCK_MONOTONIC seconds.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

MAGIC = 0x4A4F4253_00000002
HEADER_BYTES = 4096
SLOT_BYTES = 1024
MAX_SLOTS = 1024
BULLETIN_BYTES = 256 * 1024
_BULLETIN_AT = HEADER_BYTES + SLOT_BYTES * MAX_SLOTS
SIZE = _BULLETIN_AT + BULLETIN_BYTES
_FIXED = (0, 2)  # levels of the bulletin whose keys are fixed: its own, and each pool's

# Slot 0 is the maintainer's, the end of the header the admin process's: only pid and beat are used.
MAINTAINER_SLOT = 0
ADMIN_SLOT = -1


class State(IntEnum):
    FREE = 0
    STARTING = 1
    IDLE = 2
    BUSY = 3
    DRAINING = 4
    LEFT = 5  # ended as it was meant to
    BROKEN = 6  # could not be set up; the text says why


class Worn(IntEnum):
    """Why a worker asks for a successor."""

    NOT = 0
    OLD = 1  # near max_jobs_per_worker
    LARGE = 2  # over max_memory
    LEAKY = 3  # many descriptors stay open after its jobs
    CHANGED = 4  # a handler has changed its process in a way that cannot be undone


class Cancel(IntEnum):
    """Why a running job is asked to stop."""

    NONE = 0
    REQUESTED = 1  # somebody cancelled it
    TIMEOUT = 2  # it is over its time limit


(
    _STATE,
    _PID,
    _BEAT,
    _JOB,
    _TOKEN,
    _STARTED,
    _DEADLINE,
    _CLAIMS,
    _DONE,
    _PROGRESS,
    _CANCELS,
    _SETTLED,
    _SETTLED_ASIDE,
    _WORN,
    _LOST,
    _WATCHED,
) = range(16)
_INCARNATION = (128, 40)
_NAME = (168, 80)
_BATCH = 31  # the word before the text
_TEXT = (256, 256)
_LAST_JOB, _LAST_TOKEN = 64, 65  # the run that ended last
_DRAIN = 66  # it shall leave
_CANCEL_AT = 72  # the cancel requests: a job, its token and the reason each
_CANCEL_WORDS = 3
CANCELS = 16  # requests that stand at the same time; of more, the oldest is forgotten


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of one slot. `deadline` 0 means none, `progress` is None until a handler reports some."""

    state: State
    pid: int
    beat: float
    job: int
    token: int
    started: float
    deadline: float
    claims: int
    batch: int  # jobs in the run that has begun
    done: int
    progress: float | None
    unsettled: int  # runs that have ended, but whose outcomes are not committed yet
    last_job: int  # the run that ended last, 0 before the first has
    last_token: int
    worn: Worn
    lost: bool
    incarnation: str
    name: str
    text: str


class Slot:
    """One worker's place. The worker writes through it; anybody may read."""

    __slots__ = ("_bytes", "_floats", "_ints")

    def __init__(self, view: memoryview) -> None:
        self._bytes = view
        self._ints = view.cast("q")
        self._floats = view.cast("d")

    # The supervisor, around the fork

    def assign(self, incarnation: str, name: str) -> None:
        """Empty the slot and give it to a worker to come."""
        self._bytes[:] = bytes(SLOT_BYTES)
        self._write(_INCARNATION, incarnation)
        self._write(_NAME, name)
        self._floats[_PROGRESS] = -1.0
        self._floats[_BEAT] = time.monotonic()
        self._ints[_STATE] = State.STARTING

    def watch(self) -> None:
        """The worker's end will be seen: it may begin."""
        self._ints[_WATCHED] = 1

    def clear(self) -> None:
        self._bytes[:] = bytes(SLOT_BYTES)

    def request_drain(self) -> None:
        """Let the worker finish the job at hand and leave; a signal wakes it. The worker itself may ask, too."""
        self._ints[_DRAIN] = 1

    # The worker

    def occupy(self, pid: int) -> None:
        self._ints[_PID] = pid
        self.beat()

    def beat(self) -> None:
        self._floats[_BEAT] = time.monotonic()

    def detach(self) -> None:
        """In a process that a handler has forked: the slot is the worker's, and ours from now on nobody's."""
        Slot.__init__(self, memoryview(bytearray(SLOT_BYTES)))

    @property
    def memory(self) -> memoryview:
        return self._bytes

    @property
    def drain_requested(self) -> bool:
        return bool(self._ints[_DRAIN])

    @property
    def watched(self) -> bool:
        return bool(self._ints[_WATCHED])

    def state(self, state: State) -> None:
        self._ints[_STATE] = state

    def hold(self, claims: int) -> None:
        """Claims taken and not yet settled."""
        self._ints[_CLAIMS] = claims

    def begin(self, job: int, token: int, started: float, deadline: float, batch: int = 1) -> None:
        """A handler is about to run, with one job or with a `batch` of so many, of which this is the first.
        The id is written last: it makes the rest count.
        """
        ints, floats = self._ints, self._floats
        ints[_TOKEN] = token
        ints[_BATCH] = batch
        floats[_STARTED] = started
        floats[_DEADLINE] = deadline
        ints[_JOB] = job

    def finish(self, done: int) -> None:
        """The handler has returned, whatever came of it: `done` runs have ended so far."""
        ints = self._ints
        ints[_LAST_TOKEN] = ints[_TOKEN]
        ints[_LAST_JOB] = ints[_JOB]
        ints[_DONE] = done
        ints[_JOB] = 0

    def settle(self, done: int) -> None:
        """The worker's main thread has committed the outcomes of `done` runs so far."""
        self._ints[_SETTLED] = done

    def settle_aside(self, done: int) -> None:
        """The heartbeat's thread has: a word of its own, since each word has one writer."""
        self._ints[_SETTLED_ASIDE] = done

    def extend(self, deadline: float) -> None:
        self._floats[_DEADLINE] = deadline

    @property
    def deadline(self) -> float:
        return self._floats[_DEADLINE]

    def wear_out(self, why: Worn) -> bool:
        """Ask for a successor. False if that was done before."""
        before, self._ints[_WORN] = self._ints[_WORN], why
        return before != why

    def lose(self, text: str) -> None:
        """Its program has died, or had to be killed; the worker leaves. The text says how it came."""
        self._ints[_LOST] = 1
        self._write(_TEXT, text)

    def give_up(self, text: str) -> None:
        """It cannot be set up; the text says why."""
        self._write(_TEXT, text)
        self._ints[_STATE] = State.BROKEN

    def progress(self, fraction: float, text: str) -> None:
        self._floats[_PROGRESS] = fraction
        self._write(_TEXT, text)

    def forget_progress(self) -> None:
        if self._floats[_PROGRESS] >= 0:
            self._floats[_PROGRESS] = -1.0
            self._write(_TEXT, "")

    def tell(self, text: str) -> None:
        """Say in words what is wrong."""
        self._write(_TEXT, text)

    # The cancel requests: written by the supervisor, read by the worker

    def request_cancel(self, job: int, token: int, reason: Cancel) -> None:
        """Ask for one run of one job to stop; it can never hit the next, whose token or id differs.

        Several jobs of a batch may be asked for at the same time.
        """
        ints, made = self._ints, self._ints[_CANCELS]
        at = self._find_cancel(job, token)
        new = at is None
        if at is None:
            at = _CANCEL_AT + made % CANCELS * _CANCEL_WORDS
            ints[at] = 0
        ints[at + 1] = token
        ints[at + 2] = reason
        ints[at] = job
        if new:
            ints[_CANCELS] = made + 1

    def cancel_for(self, job: int, token: int) -> Cancel:
        at = self._find_cancel(job, token) if job and self._ints[_CANCELS] else None
        return Cancel.NONE if at is None else Cancel(self._ints[at + 2])

    def _find_cancel(self, job: int, token: int) -> int | None:
        ints = self._ints
        for number in range(min(ints[_CANCELS], CANCELS)):
            at = _CANCEL_AT + number * _CANCEL_WORDS
            if ints[at] == job and ints[at + 1] == token:
                return at
        return None

    # Anybody

    def is_idle(self) -> bool:
        return self._ints[_STATE] == State.IDLE

    @property
    def name(self) -> str:
        return self._read(_NAME)

    def read(self) -> Snapshot:
        ints, floats = self._ints, self._floats
        progress = floats[_PROGRESS]
        return Snapshot(
            state=State(ints[_STATE]) if 0 <= ints[_STATE] <= State.BROKEN else State.FREE,
            pid=ints[_PID],
            beat=floats[_BEAT],
            job=ints[_JOB],
            token=ints[_TOKEN],
            started=floats[_STARTED],
            deadline=floats[_DEADLINE],
            claims=ints[_CLAIMS],
            batch=ints[_BATCH],
            done=ints[_DONE],
            progress=progress if progress >= 0 else None,
            unsettled=max(0, ints[_DONE] - ints[_SETTLED] - ints[_SETTLED_ASIDE]),
            last_job=ints[_LAST_JOB],
            last_token=ints[_LAST_TOKEN],
            worn=Worn(ints[_WORN]) if 0 <= ints[_WORN] <= Worn.CHANGED else Worn.NOT,
            lost=bool(ints[_LOST]),
            incarnation=self._read(_INCARNATION),
            name=self._read(_NAME),
            text=self._read(_TEXT),
        )

    def _write(self, field: tuple[int, int], text: str) -> None:
        at, size = field
        data = text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode()
        self._bytes[at : at + size] = data.ljust(size, b"\0")

    def _read(self, field: tuple[int, int]) -> str:
        at, size = field
        return bytes(self._bytes[at : at + size]).rstrip(b"\0").decode("utf-8", "replace")


def tapes_of(scoreboard: Path) -> Path:
    return Path(f"{scoreboard}.tapes")


def tallies_of(scoreboard: Path) -> Path:
    return Path(f"{scoreboard}.tallies")


class Scoreboard:
    """The mapped file. Make it with `create`, look at somebody's with `open`."""

    def __init__(self, path: Path, mapped: mmap.mmap, *, writable: bool) -> None:
        self.path = path
        self._map = mapped
        view = memoryview(mapped)
        self._view = view if writable else view.toreadonly()
        self._slots: dict[int, Slot] = {}

    @classmethod
    def create(cls, path: Path) -> Scoreboard:
        """Make the file (mode 0600) and map it. Raises OSError where there is no room for it.

        All of it is allocated now: the first write to a page that is not kills the process on a full disk.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.pwrite(descriptor, bytes(SIZE), 0) < SIZE:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            board = cls(path, mmap.mmap(descriptor, SIZE), writable=True)
        finally:
            os.close(descriptor)
        board._view[:8] = MAGIC.to_bytes(8, "little")
        return board

    @classmethod
    def open(cls, path: Path, *, writable: bool = False) -> Scoreboard | None:
        """Map somebody's scoreboard; None if it is gone or is none."""
        try:
            descriptor = os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            if os.fstat(descriptor).st_size != SIZE:
                return None
            protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
            board = cls(path, mmap.mmap(descriptor, SIZE, prot=protection), writable=writable)
        finally:
            os.close(descriptor)
        return board if int.from_bytes(board._view[:8], "little") == MAGIC else None

    @property
    def tapes(self) -> Path:
        """Where its workers take down what their runs say; there is no such file before the first has begun."""
        return tapes_of(self.path)

    @property
    def tallies(self) -> Path:
        """Where its workers and the maintainer count what has been finished."""
        return tallies_of(self.path)

    @property
    def highest(self) -> int:
        """The highest slot that was ever used."""
        return int.from_bytes(self._view[8:16], "little")

    def use_up_to(self, number: int) -> None:
        if number > self.highest:
            self._view[8:16] = number.to_bytes(8, "little")

    def slot(self, number: int) -> Slot:
        if number not in self._slots:
            if not ADMIN_SLOT <= number < MAX_SLOTS:
                raise ValueError(f"there is no slot {number}; the scoreboard has {MAX_SLOTS}")
            at = HEADER_BYTES + number * SLOT_BYTES
            self._slots[number] = Slot(self._view[at : at + SLOT_BYTES])
        return self._slots[number]

    def find(self, incarnation: str, number: int) -> Snapshot | None:
        """The slot of a worker, if it still is that worker's."""
        snapshot = self.slot(number).read()
        return snapshot if snapshot.incarnation == incarnation else None

    def post(self, bulletin: dict[str, Any]) -> None:
        """The supervisor's own news, for `status`. A length of 0 stands while it is being written.

        What is too much is cut: long texts first, then what there are most of. `clipped` says so.
        """
        data = _fitting(bulletin)
        at = _BULLETIN_AT
        self._view[at : at + 8] = bytes(8)
        self._view[at + 8 : at + 8 + len(data)] = data
        self._view[at : at + 8] = len(data).to_bytes(8, "little")

    def bulletin(self) -> dict[str, Any]:
        for _ in range(100):
            size = int.from_bytes(self._view[_BULLETIN_AT : _BULLETIN_AT + 8], "little")
            data = bytes(self._view[_BULLETIN_AT + 8 : _BULLETIN_AT + 8 + size])
            try:
                news = json.loads(data)
            except ValueError:
                time.sleep(0.001)  # it is being written
                continue
            return news if isinstance(news, dict) else {}
        return {}

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.tapes.unlink(missing_ok=True)
        self.tallies.unlink(missing_ok=True)


def _fitting(bulletin: dict[str, Any]) -> bytes:
    """The bulletin as JSON, with as much of it as there is room for."""
    most = BULLETIN_BYTES - 8
    data = json.dumps(bulletin).encode()
    longest, widest = 4096, 1 << 16
    while len(data) > most:
        data = json.dumps(_cut(bulletin, longest, widest) | {"clipped": True}).encode()
        longest, widest = max(16, longest // 4), max(1, widest // 4)
        if longest == 16 and widest == 1:
            return data if len(data) <= most else b'{"clipped": true}'
    return data


def _cut(value: Any, longest: int, widest: int, depth: int = 0) -> Any:
    """The same with texts of at most so many characters and, below the pools' own level, so many items."""
    if isinstance(value, str):
        return value if len(value) <= longest else value[: longest - 1] + "…"
    if isinstance(value, list):
        return [_cut(item, longest, widest, depth + 1) for item in value[:widest]]
    if isinstance(value, dict):
        items = list(value.items())
        # Whoever reads it counts on the fields of the bulletin and of each pool.
        kept = items if depth in _FIXED else items[:widest]
        return {key: _cut(item, longest, widest, depth + 1) for key, item in kept}
    return value
