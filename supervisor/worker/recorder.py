"""What a run reports, uses and prints: in the slot of its worker, and for its row in `job_runs`; and how many runs
there were.

Short, silent successes have no row, and cost almost nothing.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Sequence
from time import monotonic, time
from typing import Any

from supervisor.domain.errors import ContextClosed
from supervisor.domain.history import finished_run, waiting_time
from supervisor.domain.job import Status
from supervisor.domain.settlement import Settlement, Usage
from supervisor.store.base import Engine
from supervisor.system.chunk_ring import ChunkWriter, Emitter
from supervisor.system.counters import Row
from supervisor.system.resources import Meter, own_cpu
from supervisor.system.run_log import RunLog, tee
from supervisor.system.slot import Cancel, Slot
from supervisor.worker import returned_fork
from supervisor.worker.context import Board

WORTH = 0.010  # seconds from which a silent success gets a row
FRESH = 0.010  # seconds for which a reading of the meters can be reused
QUICK = 32  # quick jobs, claimed one at a time, that are counted together


class Recorder:
    """The executor sets `run_log.run` around each run, and asks for the `usage` of those that get a row.

    To cost the other runs nothing, the meters are read when claims arrive or the worker goes to sleep, unless that was
    just done, and after each run with a row: the CPU time of a run may include up to 20 ms of shorter runs before it.
    Until `attach` nothing is measured or captured: this process may not be a worker's.
    """

    def __init__(self, run_log: Callable[[memoryview | None], RunLog] = RunLog) -> None:
        """`run_log` makes the run log, in the memory that `attach` is given."""
        self._make_run_log = run_log
        self.run_log = RunLog()
        self.chunks: ChunkWriter | None = None
        self.clock: Callable[[], float] = time
        self._own: Meter | None = None
        self._program: Meter | None = None
        self._cpu = 0.0
        self._read_at = 0.0

    def attach(self, memory: memoryview | None = None, chunks: ChunkWriter | None = None) -> None:
        """From now on this process is a worker, and what it uses and prints during a run belongs to the run.

        `memory` outlives this process and keeps what was printed before its death; `chunks` keeps what runs emit.
        """
        self.chunks = chunks
        self.run_log = self._make_run_log(memory)
        for stream in (sys.stdout, sys.stderr):
            tee(stream, self.run_log)
        os.register_at_fork(after_in_child=self.run_log.forget_in_child)
        self._own = Meter(os.getpid())

    def watch(self, pid: int) -> None:
        """A program runs the jobs: its CPU time is added to ours, and its memory counts instead of ours."""
        self._program = Meter(pid)

    def unwatch(self) -> None:
        """The program has ended; what it used now counts with our children."""
        if self._program is not None:
            self._program.close()

    def read_meters(self, now: float) -> None:
        """Before runs, or before a sleep, so that the job that ends it need not wait. `now` is monotonic seconds."""
        if now - self._read_at > FRESH:
            self._restart(now)

    def usage(self, started_at: float) -> Usage:
        """The usage of a run that has ended, however it ended."""
        run_log, memory = self.run_log, self._program or self._own
        run_log.run = None
        cpu_time = peak_memory = None
        try:
            cpu_time = None if self._own is None else max(0.0, self._used() - self._cpu)
            peak_memory = None if memory is None else memory.peak()
            self._restart(monotonic())
        except (OSError, ValueError, IndexError):
            self._own = None  # a handler has closed its files, or other files have their numbers
        usage = Usage(started_at, max(0.0, self.clock() - started_at), cpu_time, peak_memory, run_log.text())
        run_log.forget()
        return usage

    def _restart(self, now: float) -> None:
        if self._own is None:
            return
        self._read_at = now
        self._cpu = self._used()
        (self._program or self._own).restart()

    def _used(self) -> float:
        """A program that has ended is among our reaped children, so the sum stays continuous."""
        return own_cpu() + (self._program.cpu() if self._program is not None else 0.0)


class SlotBoard(Board):
    """In a worker: progress and queries, answered from its slot; log lines and chunks, kept for the job.

    `reported` is called after each report of progress.
    """

    def __init__(self, slot: Slot, recorder: Recorder, engine: Engine) -> None:
        self.reported: Callable[[], None] = lambda: None
        self._slot = slot
        self._engine = engine
        self._epoch = ""  # needed by few handlers, and constant for the worker's whole life
        self._run_log = recorder.run_log
        self._chunks = recorder.chunks

    def check(self, what: str) -> None:
        if not returned_fork.mark[0]:
            raise ContextClosed(f"ctx.{what}: the context belongs to the worker, and this process is a fork of it")

    def keep(self, line: str) -> None:
        if returned_fork.mark[0]:
            self._run_log.line(line)

    def emit(self, run: Emitter, data: bytes) -> None:
        if returned_fork.mark[0] and self._chunks is not None and not self.cancelled(run.job_id, run.token):
            self._chunks.add(run, data)

    def progress(self, fraction: float, text: str) -> None:
        if returned_fork.mark[0]:
            self._slot.progress(fraction, text)
            self.reported()

    def extend(self, seconds: float) -> None:
        self.check("extend")
        self._slot.page.deadline = monotonic() + seconds

    def cancelled(self, job: int, token: int) -> bool:
        self.check("cancelled")
        return self._slot.page.cancel_requested(job, token) is not Cancel.NONE

    def epoch(self) -> str:
        self.check("idempotency_key")
        self._epoch = self._epoch or self._engine.database.epoch()
        return self._epoch

    def about(self, job: int, what: str) -> tuple[Any, int | None]:
        self.check(what)
        return self._engine.about(job)


class RunCounter:
    """Adds to the worker's row what was committed, so nothing counts twice. When a worker is killed, the jobs that it
    has committed and not yet counted are missing: one round of claims, or QUICK single ones.

    Runs that are too short for a row of their own are not timed individually: each lasts until the next one starts,
    which within a round is a few microseconds later.
    """

    def __init__(self, row: Row) -> None:
        self.row = row
        self._quick: deque[tuple[str, float, float]] = deque()  # type, seconds of the run and of its wait

    def settled(
        self, settlements: Sequence[Settlement], lost: Collection[int], until: float, more: bool = False
    ) -> None:
        """These were committed, except the `lost`. `until` is the Unix time at which the last of their runs ended;
        `more` means that others follow at once.
        """
        if lost:
            settlements = [settlement for settlement in settlements if settlement.job_id not in lost]
        quick, later = self._quick, 0.0
        for settlement in reversed(settlements):
            started, limit = settlement.started_at, until
            if started is not None:
                if later and later != started:  # the jobs of a batch start together
                    until = later
                later, limit = started, min(until, started + WORTH)
                if settlement.usage is None and settlement.failure is None and settlement.status is Status.DONE:
                    claim = settlement.claim
                    quick.append((claim.type, max(0.0, limit - started), waiting_time(claim.due_at, started)))  # type: ignore[union-attr]
                    continue
            run = finished_run(settlement, limit)
            if run is not None:
                self.row.ran(run.type, run.run, run.wait, failed=run.failed)
        if not more or len(quick) >= QUICK:
            self.flush()

    def flush(self) -> None:
        """Count what was kept for later. Any thread may call this."""
        kept: dict[str, tuple[list[float], list[float]]] = {}
        while self._quick:
            try:
                type_, run, wait = self._quick.popleft()
            except IndexError:  # the other thread was faster
                break
            runs, waits = kept.get(type_) or kept.setdefault(type_, ([], []))
            runs.append(run)
            waits.append(wait)
        for type_, (runs, waits) in kept.items():
            self.row.ran_all(type_, sorted(runs), sorted(waits))
