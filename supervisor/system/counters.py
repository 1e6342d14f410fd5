"""Counts of finished runs by type, which only grow: a mapped file next to the scoreboard.

One row per slot, with one entry per type; slot 0 belongs to the maintainer, which settles the jobs of dead workers.
Counts belong to the slot, not to the worker that has it now: they are never reset, so a reader never loses what a
worker did before its end. Only the process in the slot writes its row, once for all jobs of a round and without a
system call; readers add up the rows.

Layout of a row: HEADER_BYTES, then MOST_TYPES + 1 entries of ENTRY_BYTES, the last one for all further types.
All words are 8 bytes in the machine's byte order; single words are written atomically.
"""

from __future__ import annotations

import os
import struct
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import add
from pathlib import Path

from supervisor.system.mappings import mapped

# Upper bounds of the histograms' buckets, in seconds; one more bucket is for larger values.
BOUNDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
BUCKETS = len(BOUNDS) + 1
MOST_TYPES = 64
OTHERS = ""  # the type under which further types are added up
HEADER_BYTES = ENTRY_BYTES = 512
_BYTES = HEADER_BYTES + ENTRY_BYTES * (MOST_TYPES + 1)
_REGION = 64 * 1024  # from one row to the next, a multiple of any page size
_USED, _BUSY, _RECLAIMED = range(3)  # the words of the header
_NAME_BYTES = 104
_ENTRY = struct.Struct(f"={_NAME_BYTES}sqqdd{BUCKETS}q{BUCKETS}q")  # the name, then the fields of TypeCounters
_DONE, _FAILED, _RUN_SECONDS, _WAIT_SECONDS, _RUN = range(_NAME_BYTES // 8, _NAME_BYTES // 8 + 5)  # words of an entry
_WAIT = _RUN + BUCKETS


@dataclass(slots=True)
class TypeCounters:
    """Counts of one type: runs that succeeded, runs that failed, how long they ran, and how long they had waited.

    Seconds are sums; `run` and `wait` count by BOUNDS. A run of unknown length is in no bucket.
    """

    done: int = 0
    failed: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
    run: list[int] = field(default_factory=lambda: [0] * BUCKETS)
    wait: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    def add(self, other: TypeCounters) -> None:
        self.done += other.done
        self.failed += other.failed
        self.run_seconds += other.run_seconds
        self.wait_seconds += other.wait_seconds
        self.run = list(map(add, self.run, other.run))
        self.wait = list(map(add, self.wait, other.wait))


@dataclass(slots=True)
class Counters:
    """The sums over all slots. `store_busy` is how often another writer held the database's lock for too long."""

    types: dict[str, TypeCounters] = field(default_factory=dict)
    store_busy: int = 0
    locks_reclaimed: int = 0

    def add(self, other: Counters) -> None:
        for name, counters in other.types.items():
            self.types.setdefault(name, TypeCounters()).add(counters)
        self.store_busy += other.store_busy
        self.locks_reclaimed += other.locks_reclaimed


class Row:
    """One slot's counts. Any thread of its process may add to them."""

    def __init__(self, memory: memoryview | None = None) -> None:
        self._bytes = memoryview(bytearray(_BYTES)) if memory is None else memory
        self._ints = self._bytes.cast("q")
        self._floats = self._bytes.cast("d")
        self._lock = threading.Lock()
        entries = map(_entry, range(_used(self._ints)))
        self._entries = {_text(bytes(self._bytes[8 * at : 8 * at + _NAME_BYTES])): at for at in entries}

    def detach(self) -> None:
        """In a process that a handler has forked: the row belongs to the worker; use private memory from now on."""
        Row.__init__(self)

    def ran(self, type_: str, run: float | None, wait: float | None, *, failed: bool = False) -> None:
        """A run has ended. `run` and `wait` are its seconds, None if unknown."""
        self._count(
            type_, _FAILED if failed else _DONE, 1, () if run is None else (run,), () if wait is None else (wait,)
        )

    def ran_all(self, type_: str, runs: Sequence[float], waits: Sequence[float]) -> None:
        """Many runs have succeeded, one for each item of the lists of seconds: ascending, or all in one bucket."""
        self._count(type_, _DONE, len(runs), runs, waits)

    def _count(self, type_: str, ends: int, number: int, runs: Sequence[float], waits: Sequence[float]) -> None:
        ints, floats = self._ints, self._floats
        with self._lock:
            at = self._entries.get(type_) or self._enter(type_)
            ints[at + ends] += number
            for seconds, sums, buckets in ((runs, _RUN_SECONDS, _RUN), (waits, _WAIT_SECONDS, _WAIT)):
                floats[at + sums] += sum(seconds)
                for bucket, count in _buckets(seconds):
                    ints[at + buckets + bucket] += count

    def busy(self) -> None:
        """Another writer held the database's lock for too long."""
        with self._lock:
            self._ints[_BUSY] += 1

    def reclaimed(self, locks: int) -> None:
        with self._lock:
            self._ints[_RECLAIMED] += locks

    def _enter(self, type_: str) -> int:
        """The position of a type's counts; created if missing."""
        number = _used(self._ints)
        if number >= MOST_TYPES:
            return self._entries.setdefault(type_, _entry(MOST_TYPES))
        at = 8 * _entry(number)
        # All of it: a predecessor may have died before it counted the entry.
        self._bytes[at : at + ENTRY_BYTES] = type_.encode("utf-8", "replace")[:_NAME_BYTES].ljust(ENTRY_BYTES, b"\0")
        self._ints[_USED] = number + 1
        return self._entries.setdefault(type_, _entry(number))


def shared(path: Path, slot: int) -> Row:
    """The row of a slot; if there is no room for the file, one in private memory."""
    return Row(mapped(path, slot * _REGION, _BYTES))


def read(path: Path) -> Counters:
    """The sums over all slots; zero if the file does not exist or cannot be read."""
    found = Counters()
    with suppress(OSError), path.open("rb", buffering=0) as file:
        # Read, not mapped: on a full tmpfs, looking at a hole of a mapped file kills the process.
        for at in range(0, os.fstat(file.fileno()).st_size - _BYTES + 1, _REGION):
            found.add(_read_row(memoryview(os.pread(file.fileno(), _BYTES, at))))
    return found


def _read_row(memory: memoryview) -> Counters:
    ints = memory.cast("q")
    used = _used(ints)
    found = Counters(store_busy=ints[_BUSY], locks_reclaimed=ints[_RECLAIMED])
    for number in range(used + (used == MOST_TYPES)):
        name, done, failed, run, wait, *buckets = _ENTRY.unpack_from(memory, 8 * _entry(number))
        counters = TypeCounters(done, failed, run, wait, buckets[:BUCKETS], buckets[BUCKETS:])
        found.types.setdefault(_text(name), TypeCounters()).add(counters)
    return found


def sums(path: Path) -> dict[str, tuple[int, int, float, float]]:
    """What this file has counted, by type: runs that succeeded, runs that failed, seconds of running and waiting."""
    types = read(path).types
    return {name: (one.done, one.failed, one.run_seconds, one.wait_seconds) for name, one in types.items()}


def _used(ints: memoryview) -> int:
    """The number of entries. A handler's native code may have written anything there."""
    return int(min(max(0, ints[_USED]), MOST_TYPES))


def _entry(number: int) -> int:
    """The first word of an entry; never 0. That of the last one, behind MOST_TYPES others, has no name."""
    return (HEADER_BYTES + number * ENTRY_BYTES) // 8


def _text(name: bytes) -> str:
    return name.rstrip(b"\0").decode("utf-8", "replace")


def _buckets(seconds: Sequence[float]) -> Iterator[tuple[int, int]]:
    """(bucket, count) for ascending seconds, without empty buckets."""
    reached, count = 0, len(seconds)
    while reached < count:
        bucket = bisect_left(BOUNDS, seconds[reached])
        beyond = count if bucket == len(BOUNDS) else bisect_right(seconds, BOUNDS[bucket], reached)
        yield bucket, beyond - reached
        reached = beyond
