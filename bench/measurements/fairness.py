"""How long another program's `INSERT` takes beside 2 and 12 saturated workers. It is made on a plain connection with
SQLite's usual busy timeout of 5 s, which knows nothing of our writers' lock. A starved one would end in "database is
locked".
"""

from __future__ import annotations

import contextlib
import random
import sqlite3
import time
from functools import partial
from pathlib import Path

from bench import ours, waiting
from bench.ours import Ours, Site, pool
from bench.probe import tally
from bench.trial import AS_SAID, Reading, Session, Trial

TITLE = "Another program's INSERT beside saturated workers"
UNITS = {"foreign INSERT": "ms", "locked": "INSERTs", "beside": "jobs/s"}
ROUNDS = AS_SAID
WORKERS = (2, 12)
_BACKLOG = {ours.AUTO.name: 150_000, ours.ONE.name: 40_000}  # jobs a second that must not be outrun
_PATIENCE = 30.0
_PAUSE = (0.002, 0.01)  # seconds between two INSERTs


def trials(session: Session) -> list[Trial]:
    return [
        Trial(one.name, str(workers), partial(_measure, session, one, workers))
        for workers in WORKERS
        for one in (ours.AUTO, ours.ONE)
    ]


def _measure(session: Session, contestant: Ours, workers: int) -> Reading:
    seconds = session.pick(5.0, 2.0)
    with session.scratch() as folder:
        site = Site(folder)
        site.fill("noop", int(_BACKLOG[contestant.name] * seconds))
        with site.supervisor(pool("noop", workers, contestant.prefetch)), contextlib.closing(site.connect()) as plain:
            waiting.until(lambda: tally.read(folder).processes == workers, "all workers at work", _PATIENCE)
            return _insert(plain, folder, seconds)


def _insert(plain: sqlite3.Connection, folder: Path, seconds: float) -> Reading:
    waits, locked = [], 0
    before, began = tally.read(folder), time.monotonic()
    while time.monotonic() < began + seconds:
        at = time.monotonic()
        try:
            plain.execute("INSERT INTO jobs (type) VALUES ('other')")
        except sqlite3.OperationalError:
            locked += 1
        waits.append((time.monotonic() - at) * 1000)
        time.sleep(random.uniform(*_PAUSE))
    after = tally.read(folder)
    # Where the jobs have run out, the workers were saturated for this long only.
    rate = (after.jobs - before.jobs) / (min(after.last, time.monotonic()) - began)
    return {"foreign INSERT": waits, "locked": [locked], "beside": [rate]}
