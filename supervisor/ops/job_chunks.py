"""Reads what the runs of this host emit, for those who follow jobs: programs and the admin process."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Collection, Mapping
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
    """The feeds of all jobs that somebody follows, as long as they keep them; read from the rings of the supervisors on
    this host.
    """

    def __init__(self) -> None:
        self._feeds: WeakValueDictionary[int, Feed] = WeakValueDictionary()
        self._rings: dict[Path, ChunkReader] = {}
        self._read: dict[tuple[Path, int], int] = {}  # how far each slot of a ring was read
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
            living = [(record, board) for record, alive, board in registered(operations) if alive is not False]
            self._use({chunks_of(Path(record.scoreboard)) for record, _ in living})
            elsewhere = {record.id for record, board in living if board is None}
        for job, state in begun.items():
            feed = self.feed(job)
            feed.token = state.token
            feed.elsewhere = state.status is Status.RUNNING and _owner(operations, state) in elsewhere
        for job, state in states.items():
            self.feed(job).runs = state.status is Status.RUNNING
        self.look()

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
        everything = any(feed.new for feed in feeds.values())
        found: dict[int, list[Chunk]] = {}
        for path, ring in self._rings.items():
            for slot in ring.slots():
                since = 0 if everything else self._read.get((path, slot), 0)
                with contextlib.suppress(OSError):
                    records, self._read[path, slot] = ring.read(slot, since)
                    for record in records:
                        if record.job in feeds:
                            found.setdefault(record.job, []).append(Chunk(*record))
        emitted = {job for job, chunks in found.items() if feeds[job].add(chunks)}
        for feed in feeds.values():
            feed.new = False
        self._took = time.monotonic() - began
        return emitted

    def _use(self, files: set[Path]) -> None:
        for path in self._rings.keys() - files:
            self._rings.pop(path).close()
            self._read = {key: end for key, end in self._read.items() if key[0] != path}
        for path in files - self._rings.keys():
            self._rings[path] = ChunkReader(path)

    def close(self) -> None:
        self._use(set())


def _owner(operations: Operations, state: JobEvent) -> str:
    """The id of the supervisor that has this run; empty if it has ended."""
    job = operations.jobs.get(state.job_id)
    if job is None or job.claim_token != state.token or not job.locked_by:
        return ""
    worker = operations.registry.worker(job.locked_by)
    return "" if worker is None else worker.supervisor
