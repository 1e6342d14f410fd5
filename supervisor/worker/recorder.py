"""What a run uses and prints, for its row in `job_runs`. Short, silent successes have none, and cost nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from time import monotonic, time

from supervisor.domain.settlement import Usage
from supervisor.system.chunk_ring import ChunkWriter
from supervisor.system.resources import Meter, own_cpu
from supervisor.system.run_log import RunLog, tee

WORTH = 0.010  # seconds from which a silent success gets a row
FRESH = 0.010  # seconds for which a reading of the meters can be reused


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
