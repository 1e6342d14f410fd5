"""Reads what the runs of this host emit, for those who follow jobs: programs and the admin process."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from weakref import WeakValueDictionary

from supervisor.domain.job import JobEvent, Status
from supervisor.domain.job_stream import Chunk, Position
from supervisor.ops.supervisors import registered
from supervisor.store.base import Operations
from supervisor.system.chunk_ring import RING_BYTES, ChunkReader
from supervisor.system.scoreboard import chunks_of

EVERY = 0.025  # seconds between two looks at the rings while a followed job runs
SHARE = 4  # a look that takes long is followed by a rest so many times as long


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

    def read(self, wanted: Collection[int], *, all_of_it: bool) -> Iterator[Chunk]:
        """What these jobs have emitted since the last time, or all that is there."""
        for path, reader in self._readers.items():
            for slot in reader.slots():
                since = 0 if all_of_it else self._read.get((path, slot), 0)
                with contextlib.suppress(OSError):
                    records, self._read[path, slot] = reader.read(slot, since)
                    yield from (Chunk(*record) for record in records if record.job in wanted)

    def close(self) -> None:
        self.use(set())


class Feed:
    """The latest chunks of a job that is followed, as many as one ring holds, in the order of their runs and numbers.
    One thread adds them, and others read. `elsewhere`: what its run emits cannot be read here.
    """

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        self.token = 0
        self.elsewhere = False
        self.runs = False
        self.new = True  # nothing was read for it
        self._chunks: deque[Chunk] = deque()
        self._size = 0

    def add(self, chunks: Collection[Chunk]) -> bool:
        """Whether there are new ones among them."""
        latest = self._chunks[-1].at if self._chunks else Position()
        new = [chunk for chunk in sorted(chunks, key=lambda chunk: chunk.at) if chunk.at > latest and chunk.is_valid()]
        self._chunks.extend(new)
        self._size += sum(len(chunk.data) for chunk in new)
        while self._size > RING_BYTES:
            self._size -= len(self._chunks.popleft().data)
        return bool(new)

    def behind(self, at: Position) -> list[Chunk]:
        found = []
        for chunk in reversed(self._chunks.copy()):
            if chunk.at <= at:
                break
            found.append(chunk)
        return found[::-1]


class Feeds:
    """The feeds of all jobs that somebody follows, as long as they keep them."""

    def __init__(self) -> None:
        self._feeds: WeakValueDictionary[int, Feed] = WeakValueDictionary()
        self._rings = Rings()
        self._took = 0.0  # seconds, for the last look

    def feed(self, job_id: int) -> Feed:
        if (found := self._feeds.get(job_id)) is None:
            found = self._feeds[job_id] = Feed(job_id)
        return found

    def update(self, states: Mapping[int, JobEvent], operations: Operations) -> None:
        """How these jobs are now. What was emitted until then is read."""
        begun = {job: state for job, state in states.items() if state.token not in (0, self.feed(job).token)}
        if begun:
            self.look()  # a supervisor that has ended has taken its file with it
            elsewhere = self._find_rings(operations)
        for job, state in begun.items():
            feed = self.feed(job)
            feed.token = state.token
            feed.elsewhere = state.status is Status.RUNNING and _owner(operations, state) in elsewhere
        for job, state in states.items():
            self.feed(job).runs = state.status is Status.RUNNING
        self.look()

    def _find_rings(self, operations: Operations) -> set[str]:
        """Where runs on this host emit now. Returns the ids of supervisors whose files are not here."""
        living = [(record, board) for record, alive, board in registered(operations) if alive is not False]
        self._rings.use({chunks_of(Path(record.scoreboard)) for record, _ in living})
        return {record.id for record, board in living if board is None}

    @property
    def rest(self) -> float:
        """Seconds until the next look."""
        if any(feed.runs for feed in list(self._feeds.values())):
            return max(EVERY, SHARE * self._took)
        return math.inf

    def look(self) -> set[int]:
        """Give the feeds what was emitted since the last look; a new one gets all that is still there. Returns the jobs
        that have emitted something.
        """
        began = time.monotonic()
        feeds = {feed.job_id: feed for feed in list(self._feeds.values())}
        found: dict[int, list[Chunk]] = {}
        for chunk in self._rings.read(feeds.keys(), all_of_it=any(feed.new for feed in feeds.values())):
            found.setdefault(chunk.job, []).append(chunk)
        emitted = {job for job, chunks in found.items() if feeds[job].add(chunks)}
        for feed in feeds.values():
            feed.new = False
        self._took = time.monotonic() - began
        return emitted

    def close(self) -> None:
        self._rings.close()


def _owner(operations: Operations, state: JobEvent) -> str:
    """The id of the supervisor that has this run; empty if it has ended."""
    job = operations.jobs.get(state.job_id)
    if job is None or job.claim_token != state.token or not job.locked_by:
        return ""
    worker = operations.registry.worker(job.locked_by)
    return "" if worker is None else worker.supervisor
