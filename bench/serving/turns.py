"""Three models on a machine that has room for two, and on one that has room for all: jobs come in bursts by model.

Two bursts are always under way, of two models, so that both machines have work for two workers. Each model comes up
again after the two others, which is the worst order for the one that has been idle for longest to make room.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sqlite3
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import models, processes, waiting
from bench.serving.contestants import QUEUE, Site, pools, run_supervisor
from bench.trial import Reading
from supervisor import Queue

MODELS = 3
ROOM = 2.5  # models for which there is memory
MIN_RESIDENCY = 2.0  # seconds
MAX_WAIT = 6.0
TWO, ALL = "room for two", "room for all"
_PATIENCE = 180.0


@dataclass(frozen=True)
class Bursts:
    """So many bursts, of so many pictures each."""

    count: int
    pictures: int

    @property
    def jobs(self) -> int:
        return self.count * self.pictures


def measure(folder: Path, bursts: Bursts, memory: int | None) -> Reading:
    """`memory` is what the three may use together, in bytes; None if that does not matter."""
    try:
        with QUEUE.site(folder, 1, MODELS) as site:
            with processes.running(_command(site, memory), env=site.env, log=folder / "server.log"):
                seconds = _feed(site, bursts)
            return {
                "turns": [bursts.jobs / seconds],
                "loads": [len(site.loads())],
                "loads for each residency": [_loads_for_each_residency(site, seconds)],
                "failed": [_count(site, "status <> 'done'")],
                "killed": [_count(site, "crashes > 0 OR attempts > 1")],
            }
    finally:
        processes.sweep()


def room_for_two(folder: Path) -> int:
    """Bytes in which two and a half of the models fit, from what the supervisor has measured of them."""
    try:
        with QUEUE.site(folder, 1, MODELS) as site:
            with processes.running(_command(site, None, "workers = 1"), env=site.env, log=folder / "server.log"):
                _feed(site, Bursts(MODELS, 4))
                memory = waiting.until(lambda: _measured(site), "the sizes of the models", _PATIENCE, 0.5)
            return int(memory * ROOM / MODELS)
    finally:
        processes.sweep()


def _command(site: Site, memory: int | None, workers: str = "min_workers = 0\nmax_workers = 1") -> list[str]:
    text = f'database = "{site.url}"\n{pools(site, workers)}[log]\nlevel = "error"\n'
    if memory is not None:
        text += f'[machine]\nmemory = "{memory}B"\nmin_residency = "{MIN_RESIDENCY}s"\nmax_wait = "{MAX_WAIT}s"\n'
    return run_supervisor(site, text)


def _measured(site: Site) -> int:
    """Bytes of all models and templates, once all are known."""
    command = [sys.executable, "-m", "supervisor", "status", "--json", "-c", str(site.folder / "supervisor.toml")]
    told = json.loads(processes.call(command, env=site.env, log=site.folder / "status.log", patience=_PATIENCE))
    memory: dict[str, Any] = told["supervisors"][0]["memory"]
    sizes = memory["pools"].values()
    return sum(sizes) + int(memory["templates"]) if len(sizes) == MODELS and all(sizes) else 0


def _feed(site: Site, bursts: Bursts) -> float:
    """Seconds from the first burst to the end of the last. A burst is enqueued when the one before the last is done."""
    paths = itertools.cycle(models.pictures())
    last: list[list[int]] = []
    with Queue(site.url) as queue:
        began = time.monotonic()
        for number in range(bursts.count):
            if number >= 2:
                _await(queue, last[number - 2])
            payloads = [{"path": next(paths)} for _ in range(bursts.pictures)]
            last.append(queue.enqueue_many(site.names[number % MODELS], payloads))
        for ids in last[-2:]:
            _await(queue, ids)
        return time.monotonic() - began


def _await(queue: Queue, ids: list[int]) -> None:
    for job in ids:
        queue.wait(job, timeout=_PATIENCE)


def _loads_for_each_residency(site: Site, seconds: float) -> float:
    """Of the model that was loaded most often; up to one is what `min_residency` allows."""
    with contextlib.closing(sqlite3.connect(site.folder / "app.db")) as connection:
        rows = connection.execute("SELECT type, count(DISTINCT json_extract(result, '$.pid')) FROM jobs GROUP BY type")
        most = max(int(loads) for _, loads in rows)
    return most / max(1.0, seconds / MIN_RESIDENCY)


def _count(site: Site, condition: str) -> int:
    with contextlib.closing(sqlite3.connect(site.folder / "app.db")) as connection:
        return int(connection.execute(f"SELECT count(*) FROM jobs WHERE {condition}").fetchone()[0])
