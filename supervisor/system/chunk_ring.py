"""What runs emit: the latest chunks of each worker, in a file that outlives it.

The workers of one scoreboard share a file; each slot has a region of its own, which its worker allocates with its first
chunk, and in which its successor goes on. Layout: the position of the oldest chunk that is there and the one behind the
latest, then a ring. Positions count bytes since the region was made. A chunk is a header and JSON. All words are in
the machine's byte order.

A worker first gives up the oldest chunks, then writes, then moves the end: a reader that looks at the first word before
and after it copies knows which chunks it has whole, and a worker that dies in between leaves nothing half done.
"""

from __future__ import annotations

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from supervisor.system.mappings import get_from_ring, mapped, put_in_ring, words

REGION = 256 * 1024  # from one slot's to the next, a multiple of any page size
_WORDS = struct.Struct("qq")
_HEAD = struct.Struct("=IIqqq")  # bytes of the data, attempt, job, token, number
_RING_AT = 64
RING_BYTES = REGION - _RING_AT
_LARGEST = 64 * 1024  # bytes of data: anything above was written by something else
_MOST_ATTEMPTS = 2**32 - 1


class Emitter(Protocol):
    """A run that emits. `emitted` is the number of its chunks so far."""

    job_id: int
    token: int
    attempt: int
    emitted: int


class Record(NamedTuple):
    job: int
    token: int
    attempt: int
    number: int
    data: bytes


class ChunkWriter:
    """The ring of one worker. Any thread may add to it. Nothing is allocated before the first chunk."""

    def __init__(self, path: Path, slot: int) -> None:
        self._path = path
        self._slot = slot
        self._memory: memoryview | None = None
        self._tried = False
        self._lock = threading.RLock()  # a signal handler may emit while it interrupts `add`

    def add(self, run: Emitter, data: bytes) -> None:
        """Number a chunk of a run and keep it. Without room for the ring it is lost."""
        with self._lock:
            run.emitted += 1
            memory = self._opened()
            if memory is None:
                return
            record = _HEAD.pack(len(data), min(run.attempt, _MOST_ATTEMPTS), run.job_id, run.token, run.emitted) + data
            ends = self._words
            oldest, end = _valid(*ends)
            room = self._room(memory, oldest, end, len(record))
            if ends[1] != end:  # native code has written there
                ends[1] = end
            ends[0] = room
            put_in_ring(memory[_RING_AT:], end, record)
            ends[1] = end + len(record)

    def _opened(self) -> memoryview | None:
        if not self._tried:
            self._tried = True
            self._memory = mapped(self._path, self._slot * REGION, REGION)
            if self._memory is not None:
                self._words = words(self._memory, 2)
        return self._memory

    def _room(self, memory: memoryview, oldest: int, end: int, size: int) -> int:
        """The oldest chunk that stays when so many bytes are added."""
        while end + size - oldest > RING_BYTES:
            length = _HEAD.unpack(get_from_ring(memory[_RING_AT:], oldest, _HEAD.size))[0]
            oldest += _HEAD.size + length
            if length > _LARGEST or oldest > end:
                return end  # native code has written there
        return oldest


class ChunkReader:
    """The rings of all workers of one scoreboard, for another process. `close` it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    def slots(self) -> range:
        """The slots that may have a ring; none before the first chunk, or if the file cannot be read."""
        try:
            if self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            return range((os.fstat(self._file).st_size + REGION - 1) // REGION)
        except OSError:
            return range(0)

    def read(self, slot: int, since: int) -> tuple[list[Record], int]:
        """The chunks that were added behind a position, as far as they are there, and the position behind them."""
        oldest, end = self._words(slot)
        start = since if oldest <= since <= end else oldest
        if start == end:
            return [], end
        region = memoryview(os.pread(self._file, REGION, slot * REGION))
        whole = max(start, self._words(slot)[0])  # what is before that may have been overwritten meanwhile
        if len(region) < REGION or whole >= end:
            return [], end
        return list(_records(get_from_ring(region[_RING_AT:], whole, end - whole))), end

    def _words(self, slot: int) -> tuple[int, int]:
        data = os.pread(self._file, _WORDS.size, slot * REGION)
        return _valid(*_WORDS.unpack(data)) if len(data) == _WORDS.size else (0, 0)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _records(data: bytes) -> Iterator[Record]:
    """What is there, up to anything that no worker has written like this."""
    at = 0
    while at + _HEAD.size <= len(data):
        size, attempt, job, token, number = _HEAD.unpack_from(data, at)
        end = at + _HEAD.size + size
        if end > len(data) or size > _LARGEST:
            return
        yield Record(job, token, attempt, number, data[at + _HEAD.size : end])
        at = end


def _valid(oldest: int, end: int) -> tuple[int, int]:
    return (oldest, end) if 0 <= oldest <= end <= oldest + RING_BYTES else (0, 0)
