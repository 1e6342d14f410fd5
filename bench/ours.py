"""Ours as a contestant, and the folder with a configuration and handlers in which it runs."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench import processes, waiting
from bench.contestant import ALL_COUNTS
from bench.peers.base import PROGRAMS, Sample, environment
from supervisor.engine import open_engine
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot, State

ROOT = Path(__file__).parents[1]
HANDLERS = """
import time

import tally

def noop(payload, ctx):
    tally.mark()

def arrive(payload, ctx):
    tally.arrive(payload["number"])

def once(payload, ctx):
    tally.arrive(payload["number"])
    if ctx.token == 1:
        time.sleep(60)

def slow(payload, ctx):
    tally.slow()

def brief(payload, ctx):
    tally.mark()
    time.sleep(0.05)
"""
FILL = """
WITH RECURSIVE count (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM count WHERE n < ?)
INSERT INTO jobs (type) SELECT ? FROM count
"""
_PATIENCE = 120.0


class Site:
    """A folder with everything a supervisor needs, and an empty database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "app.db"
        self.url = f"sqlite:///{self.database}"
        self.env = environment(folder)
        self.env["PYTHONPATH"] += f":{ROOT}"
        (folder / "jobs.py").write_text(HANDLERS)
        open_engine(self.url).database.migrate()

    def fill(self, type: str, jobs: int) -> None:
        """Due jobs by one plain statement, which is how any program may enqueue them."""
        with contextlib.closing(self.connect()) as connection:
            connection.execute(FILL, (jobs, type))

    def connect(self) -> sqlite3.Connection:
        """A plain connection that knows nothing of us, with SQLite's usual busy timeout."""
        return sqlite3.connect(self.database, timeout=5, isolation_level=None)

    def count(self, status: str) -> int:
        with contextlib.closing(self.connect()) as connection:
            return int(connection.execute("SELECT count(*) FROM jobs WHERE status = ?", (status,)).fetchone()[0])

    @contextlib.contextmanager
    def supervisor(self, pools: str) -> Iterator[subprocess.Popen[bytes]]:
        """`supervisor run` with these pools; it and its processes are killed at the end."""
        config = self.folder / "supervisor.toml"
        config.write_text(f'database = "sqlite:///./app.db"\n{pools}\n[log]\nlevel = "error"\n')
        command = [sys.executable, "-m", "supervisor", "run", "-c", str(config)]
        with processes.running(command, env=self.env, log=self.folder / "supervisor.log") as process:
            yield process

    def scoreboard(self) -> Scoreboard:
        """The running supervisor's; waits until there is one."""

        def found() -> Scoreboard | None:
            boards = (Scoreboard.open(path) for path in self.folder.rglob("scoreboard-*") if not path.suffix)
            return next((board for board in boards if board is not None), None)

        return waiting.until(found, "a scoreboard", _PATIENCE)

    def await_idle(self, workers: int) -> Scoreboard:
        """Wait until that many workers are idle."""
        board = self.scoreboard()
        waiting.until(lambda: len(idle(board)) >= workers, f"{workers} idle workers", _PATIENCE)
        return board

    def call(self, program: str, *arguments: str, **env: str) -> str:
        """Run one of the enqueuing programs."""
        command = [sys.executable, str(PROGRAMS / program), *arguments]
        return processes.call(command, env=self.env | env, log=self.folder / "enqueue.log", patience=_PATIENCE)

    def feed(self, jobs: int, commit: str) -> list[Sample]:
        """Enqueue jobs one at a time while the workers are idle; ours_app.py knows the kinds of commit."""
        told = json.loads(self.call("ours_app.py", "feed", str(jobs), BENCH_COMMIT=commit))
        return [(before, after, at) for before, after, at in told]


def slots(board: Scoreboard) -> list[Snapshot]:
    """What the workers, and those that have left, say of themselves."""
    return [board.slot(number).read() for number in range(1, board.highest + 1)]


def idle(board: Scoreboard) -> list[int]:
    """The pids of the idle workers."""
    return [slot.pid for slot in slots(board) if slot.state is State.IDLE]


def pool(handler: str, workers: int, prefetch: str = '"auto"') -> str:
    """A pool whose workers are never replaced for their age, as the peers' are not."""
    return (
        f'[pools.{handler}]\nhandler = "jobs:{handler}"\nworkers = {workers}\nprefetch = {prefetch}\n'
        "max_jobs_per_worker = 1000000000\n"
    )


@dataclass(frozen=True)
class Ours:
    """job-supervisor with one setting of `prefetch`."""

    name: str
    title: str
    prefetch: str
    size: int
    worker_counts: tuple[int, ...] = ALL_COUNTS

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[OurQueue]:
        yield OurQueue(folder, self.prefetch)


class OurQueue:
    """Implements `bench.contestant.OpenQueue`."""

    def __init__(self, folder: Path, prefetch: str) -> None:
        self._site = Site(folder)
        self._prefetch = prefetch

    def fill(self, jobs: int) -> None:
        self._site.fill("noop", jobs)

    @contextlib.contextmanager
    def workers(self, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        with self._site.supervisor(pool("noop", count, self._prefetch)) as process:
            yield [process]


AUTO = Ours("ours-auto", "job-supervisor", '"auto"', 200_000)
ONE = Ours("ours-1", "job-supervisor, prefetch = 1", "1", 40_000)
