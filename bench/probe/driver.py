"""The enqueuing side of every contestant: a small program that fills a queue or feeds an idle one.

PROGRAM fill JOBS         one call a job; prints the seconds that took
PROGRAM fill-many JOBS    by the contestant's call for many, if it has one
PROGRAM feed JOBS         one at a time into an idle queue; prints a line a job:
                          before the call, after it, the handler's first line (CLOCK_MONOTONIC seconds)
PROGRAM slow              one job that goes on until it is released
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tally import PIPE, Arrivals

PAUSE = (0.02, 0.12)  # seconds between two jobs, at random: a poller must not be met in step
WARM_UP = 3  # jobs before those that count
PATIENCE = 30.0  # seconds for one job to begin


def drive(
    noop: Callable[[], object],
    arrive: Callable[[int], object],
    many: Callable[[int], object] | None = None,
    slow: Callable[[], object] | None = None,
) -> None:
    """Do what the command line says. `noop` enqueues a no-op job, `arrive` one that tells its number."""
    what, jobs = sys.argv[1], int(sys.argv[2])
    if what == "fill":
        print(json.dumps(_timed(lambda: [noop() for _ in range(jobs)])))
    elif what == "fill-many" and many is not None:
        print(json.dumps(_timed(lambda: many(jobs))))
    elif what == "feed":
        print(json.dumps(feed(arrive, jobs)))
    elif what == "slow" and slow is not None:
        slow()
    else:
        sys.exit(f"{what}: not known here")


def feed(arrive: Callable[[int], object], jobs: int) -> list[tuple[float, float, float]]:
    """Enqueue one job after the other, each when the last has begun and a pause has passed."""
    arrivals = Arrivals(Path(os.environ[PIPE]))
    samples = []
    for number in range(-WARM_UP, jobs):
        time.sleep(random.uniform(*PAUSE))
        before = time.monotonic()
        arrive(number)
        after = time.monotonic()
        while (begun := arrivals.next(PATIENCE)).number != number:
            pass
        if number >= 0:
            samples.append((before, after, begun.at))
    arrivals.close()
    return samples


def _timed(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
