"""What a run uses and says, for its row in `job_runs`. Short and silent successes have none, and cost nothing."""

from __future__ import annotations

import os
import sys
from time import monotonic, time

from supervisor.domain.settlement import Usage
from supervisor.system.meter import Meter, own_cpu
from supervisor.system.run_log import RunLog, tee

WORTH = 0.010  # seconds from which a silent success is worth a row
FRESH = 0.010  # seconds for which a reading of the meters will do


class Recorder:
    """The executor sets `run_log.run` around each run, and asks for the `usage` of those that are worth a row.

    To cost the others nothing, the meters are read at the beginning of a hand of claims, unless that was just
    done, and after each run worth a row: the CPU time of a run may include what shorter ones before it used within
    20 ms. Until `attach` nothing is measured and nothing printed is taken down: this process may be somebody else's.
    """

    def __init__(self) -> None:
        self.run_log = RunLog()
        self._own: Meter | None = None
        self._program: Meter | None = None
        self._cpu = 0.0
        self._read_at = 0.0

    def attach(self, memory: memoryview | None = None) -> None:
        """From now on this process is a worker, and what it uses and prints during a run is the run's.

        `memory` outlives us, for what we had said when we died.
        """
        self.run_log = RunLog(memory)
        for stream in (sys.stdout, sys.stderr):
            tee(stream, self.run_log)
        os.register_at_fork(after_in_child=self.run_log.forget_in_child)
        self._own = Meter(os.getpid())

    def watch(self, pid: int) -> None:
        """A program runs the jobs: its CPU time counts with ours, and its memory instead of ours."""
        self._program = Meter(pid)

    def unwatch(self) -> None:
        """The program has ended; what it used is counted with our children."""
        if self._program is not None:
            self._program.close()

    def hand(self, now: float) -> None:
        """A hand of claims begins. `now` is monotonic seconds."""
        if now - self._read_at > FRESH:
            self._restart(now)

    def usage(self, started_at: float) -> Usage:
        """A run has ended, however it did."""
        run_log, memory = self.run_log, self._program or self._own
        run_log.run = None
        cpu_time = peak_memory = None
        try:
            cpu_time = None if self._own is None else max(0.0, self._used() - self._cpu)
            peak_memory = None if memory is None else memory.peak()
            self._restart(monotonic())
        except (OSError, ValueError, IndexError):
            self._own = None  # a handler has closed its files, or others stand in their place
        usage = Usage(started_at, max(0.0, time() - started_at), cpu_time, peak_memory, run_log.text())
        run_log.forget()
        return usage

    def _restart(self, now: float) -> None:
        if self._own is None:
            return
        self._read_at = now
        self._cpu = self._used()
        (self._program or self._own).restart()

    def _used(self) -> float:
        """A program that has ended is among our reaped children, so the sum goes on where it was."""
        return own_cpu() + (self._program.cpu() if self._program is not None else 0.0)
