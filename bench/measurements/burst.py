"""10,000 jobs of 50 ms come to an idle pool with `max_workers = 8`: from the commit until all eight workers are at
work.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from bench import waiting
from bench.ours import Site
from bench.probe import tally
from bench.trial import AS_SAID, Reading, Session, Trial
from supervisor import Queue

TITLE = "A burst of 10,000 jobs on an idle, auto-scaled pool"
UNITS = {"full size": "ms"}
ROUNDS = AS_SAID
JOBS = 10_000
MAX_WORKERS = 8
_TIMES = 3  # a round
_PATIENCE = 30.0
POOL = f'[pools.brief]\nhandler = "jobs:brief"\nmin_workers = 1\nmax_workers = {MAX_WORKERS}\n'


def trials(session: Session) -> list[Trial]:
    return [Trial("ours", str(MAX_WORKERS), partial(_measure, session))]


def _measure(session: Session) -> Reading:
    return {"full size": [_once(session) for _ in range(_TIMES)]}


def _once(session: Session) -> float:
    """Milliseconds from the commit of the burst until each of the workers has begun a job (of 50 ms)."""
    with session.scratch() as folder:
        site = Site(folder)
        with Queue(site.url) as queue, site.supervisor(POOL):
            site.await_idle(1)
            queue.enqueue_many("brief", [{}] * JOBS)
            committed = time.monotonic()
            full = waiting.until(lambda: _full(folder), "a pool at its full size", _PATIENCE)
            return (full - committed) * 1000


def _full(folder: Path) -> float | None:
    """When the last of the workers began, once all have."""
    starts = tally.read(folder).starts
    return starts[-1] if len(starts) == MAX_WORKERS else None
