"""What it costs to settle a job and claim the next, through the store's exchange, when the table holds 10³ to 10⁶ other
rows: finished ones, delayed ones of a higher priority, or due ones of other types. Always ten rounds.
"""

from __future__ import annotations

import contextlib
import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.ours import FILL, Site
from bench.trial import Reading, Session, Trial
from supervisor.domain import settlement
from supervisor.engine import open_engine
from supervisor.store.base import JobSelector, WorkerRecord

TITLE = "What a claim costs beside 10³ to 10⁶ other rows"
UNITS = {"claim": "µs"}
ROUNDS = (10, 10)  # short ones: the table of each size is made once
SIZES = (1_000, 10_000, 100_000, 1_000_000)
KINDS = {
    "finished": "INSERT INTO jobs (type, status, completed_at, result) SELECT 'noop', 'done', 1e9, '{}' FROM count",
    "delayed": "INSERT INTO jobs (type, priority, scheduled_at) SELECT 'noop', 10, 9e9 + n FROM count",
    "other types": "INSERT INTO jobs (type) SELECT 'other-' || (n % 20) FROM count",
}
_COUNT = "WITH RECURSIVE count (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count WHERE n < ?) "
_CLAIMS = 200  # a round


def trials(session: Session) -> list[Trial]:
    sizes = session.pick(SIZES, (1_000, 100_000))
    return [Trial("ours", f"{kind}: {rows}", _prepared(session, kind, rows)) for kind in KINDS for rows in sizes]


def _prepared(session: Session, kind: str, rows: int) -> Callable[[], Reading]:
    folder = session.folder / f"claims-{kind.replace(' ', '-')}-{rows}"
    return partial(_measure, folder, kind, rows, _CLAIMS * (ROUNDS[1] + 1))


def _measure(folder: Path, kind: str, rows: int, due: int) -> Reading:
    """Microseconds of an exchange, which settles the last job and claims the next: the median of many."""
    url = f"sqlite:///{folder}/app.db"
    if not folder.exists():
        folder.mkdir()
        with contextlib.closing(Site(folder).connect()) as connection:
            connection.execute(_COUNT + KINDS[kind], (rows,))
            connection.execute(FILL, (due, "noop"))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    store = open_engine(url).claims()
    owner = str(uuid.uuid4())
    store.register(WorkerRecord(owner, "bench", "noop", "noop-1", 0, 1, "{}", time.time()))
    wanted, took = JobSelector(("noop",)), []
    settlements: list[settlement.Settlement] = []
    for _ in range(_CLAIMS):
        now = time.time()
        began = time.perf_counter()
        [claim] = store.settle_and_claim(owner, settlements, wanted, 1, 60.0, now).claims
        took.append((time.perf_counter() - began) * 1e6)
        settlements = [settlement.done(claim, None, started_at=now)]
    store.settle_and_claim(owner, settlements, wanted, 0, 60.0, time.time())
    store.close()
    return {"claim": [statistics.median(took)]}
