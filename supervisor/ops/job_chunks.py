"""Reads what the runs of this host emit, for those who follow jobs: the admin process and programs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from supervisor.domain.job_stream import Chunk, Position
from supervisor.ops.supervisors import registered
from supervisor.store.base import Operations
from supervisor.system.chunk_ring import RING_BYTES, ChunkReader
from supervisor.system.scoreboard import chunks_of

EVERY = 0.025  # seconds between two looks at the rings while a followed job runs
SHARE = 4  # a look that takes long is followed by a rest so many times as long


class Whereabouts(NamedTuple):
    """The files with the rings of this host's supervisors, and the ids of supervisors whose files are not here."""

    files: set[Path]
    elsewhere: frozenset[str]


def whereabouts(operations: Operations) -> Whereabouts:
    """Where runs emit now."""
    files, elsewhere = set(), set()
    for record, alive, board in registered(operations):
        if alive is not False:
            files.add(chunks_of(Path(record.scoreboard)))
            if board is None:
                elsewhere.add(record.id)
    return Whereabouts(files, frozenset(elsewhere))


def runs_elsewhere(operations: Operations, job_id: int, token: int, elsewhere: Collection[str]) -> bool:
    """Whether this run of a job belongs to one of these supervisors. False if it has ended."""
    job = operations.jobs.get(job_id)
    if job is None or job.claim_token != token or not job.locked_by:
        return False
    worker = operations.registry.worker(job.locked_by)
    return worker is not None and worker.supervisor in elsewhere


class Rings:
    """The rings of the supervisors on this host, and how far each was read."""

    def __init__(self) -> None:
        self._readers: dict[Path, ChunkReader] = {}
        self._read: dict[tuple[Path, int], int] = {}

    def use(self, files: set[Path]) -> None:
        for path in self._readers.keys() - files:
            self._readers.pop(path).close()
            self._read = {key: end for key, end in self._read.items() if key[0] != path}
        for path in files - self._readers.keys():
            self._readers[path] = ChunkReader(path)

    def read(self, wanted: Collection[int], new: Collection[int]) -> Iterator[Chunk]:
        """What was added since the last time; of the `new` jobs, all that is there."""
        for path, reader in self._readers.items():
            for slot in reader.slots():
                since = self._read.get((path, slot), 0)
                with contextlib.suppress(OSError):
                    records, self._read[path, slot] = reader.read(slot, 0 if new else since)
                    for record in records:
                        if record.job in new or (record.position >= since and record.job in wanted):
                            yield Chunk(*record[1:])

    def close(self) -> None:
        self.use(set())


class LatestChunks:
    """The latest chunks of a job, as many as one ring holds, in the order of their runs and numbers."""

    def __init__(self) -> None:
        self._chunks: deque[Chunk] = deque()
        self._size = 0

    def add(self, chunks: Collection[Chunk]) -> None:
        latest = self._chunks[-1].at if self._chunks else Position()
        for chunk in sorted(chunks, key=lambda chunk: chunk.at):
            if chunk.at > latest and chunk.is_valid():
                self._chunks.append(chunk)
                self._size += len(chunk.data)
        while self._size > RING_BYTES:
            self._size -= len(self._chunks.popleft().data)

    def behind(self, at: Position) -> list[Chunk]:
        found = []
        for chunk in reversed(self._chunks):
            if chunk.at <= at:
                break
            found.append(chunk)
        return found[::-1]
