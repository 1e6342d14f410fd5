"""A full queue and saturated workers: what throughput and claim waits are measured on."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from bench import processes, waiting
from bench.contestant import Contestant
from bench.probe import tally
from bench.probe.tally import Count

_PATIENCE = 20.0  # seconds without a single job
_LOOK = 0.05  # seconds between two looks at the counts, which take time from the contestants


def drain(folder: Path, contestant: Contestant, workers: int, jobs: int, seconds: float) -> tuple[Count, int]:
    """Fill the queue and have it worked on until it is empty or the seconds since the first job are over.

    Returns the count, and the number of workers that died over it.
    """
    with contestant.open(folder) as queue:
        queue.fill(jobs)
        with queue.workers(workers) as programs:
            return follow(folder, jobs, seconds, programs), sum(program.poll() is not None for program in programs)


def follow(folder: Path, jobs: int, seconds: float, programs: list[subprocess.Popen[bytes]]) -> Count:
    """Until so many jobs have run, or the seconds since the first are over."""
    count, moved = tally.read(folder), time.monotonic()
    while count.jobs < jobs and not (count.jobs and time.monotonic() > count.first + seconds):
        time.sleep(_LOOK)
        before, count = count.jobs, tally.read(folder)
        if count.jobs > before:
            moved = time.monotonic()
        elif all(program.poll() is not None for program in programs):
            raise processes.ProgramFailed(f"all workers have ended{processes.tail(folder / 'workers.log')}")
        elif time.monotonic() > moved + _PATIENCE:
            raise waiting.NotInTime(f"stands still at {count.jobs} of {jobs} jobs")
    return count
