"""What the maintainer of an idle supervisor spends on what others do: on lines of a log file in the database's folder,
and on commits of the application in the same file, none of which concerns a job. Beside it runs the floor: a bare loop
that sleeps until inotify tells of a write, sleeps once until it is committed, and asks for the version and a due job.

`python -m bench.bystander [FOLDER]` prints the share of a core of both for each of these, and for nothing at all.
"""

from __future__ import annotations

import contextlib
import os
import select
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import processes
from bench.ours import ROOT, Site, pool
from bench.waiting import until
from supervisor.system.files import FileWatch

WORKERS = 2
ROUNDS = 3  # in turns, because machines drift
SECONDS = 4.0  # of each load in a round
LOADS = [("", 0), ("log", 50), ("log", 470), ("commits", 10), ("commits", 100), ("commits", 870)]
_PATIENCE = 30.0
_COMMIT = 0.0015  # seconds for a synced one
_DUE = """
SELECT 1 FROM jobs
WHERE type = 'noop' AND requires = '' AND priority = 0 AND status = 'pending' AND scheduled_at <= ? LIMIT 1
"""


def main(folder: Path) -> None:
    processes.adopt_orphans()
    site = Site(folder)
    with site.supervisor(pool("noop", WORKERS)):
        board = site.await_idle(WORKERS)
        maintainer = until(lambda: int(board.supervisor_status().get("maintainer", 0)), "the maintainer", _PATIENCE)
        with contextlib.closing(site.connect()) as connection:
            connection.execute("CREATE TABLE visits (id INTEGER PRIMARY KEY, at REAL)")
        found: dict[tuple[str, int], list[tuple[float, ...]]] = {load: [] for load in LOADS}
        with program(site, "floor") as bare:
            for _ in range(ROUNDS):
                for load in LOADS:
                    found[load].append(beside(site, (maintainer, bare.pid), *load))
        for (kind, rate), rounds in found.items():
            ours, wakeups, least, its = (statistics.median(values) for values in zip(*rounds, strict=True))
            name = f"{kind}, {rate} a second" if kind else "nothing"
            print(f"{name:25} {ours:5.2f} % of a core, {wakeups:5.1f} wake-ups a second", end="; ")
            print(f"floor {least:5.2f} %, {its:5.1f}", flush=True)
    processes.sweep()


def program(site: Site, *arguments: str) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "bench.bystander", str(site.folder), *arguments]
    return processes.running(command, env=site.env | {"PYTHONPATH": str(ROOT)}, log=site.folder / "load.log")


def beside(site: Site, pids: tuple[int, int], kind: str, rate: int) -> tuple[float, ...]:
    """For each process the percentage of a core, and the wake-ups a second."""
    time.sleep(0.5)  # what was before is over
    with program(site, kind, str(rate)) if kind else contextlib.nullcontext():
        time.sleep(1.0)  # it has begun
        began, before = time.monotonic(), [*map(used, pids)]
        time.sleep(SECONDS)
        seconds, after = time.monotonic() - began, [*map(used, pids)]
    both = zip(before, after, strict=True)
    return tuple(value for a, b in both for value in ((b[0] - a[0]) / seconds * 100, (b[1] - a[1]) / seconds))


def used(pid: int) -> tuple[float, int]:
    """The CPU seconds of a process, and how often it has gone to sleep."""
    running = int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [sleeps] = [int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches")]
    return running, sleeps


def load(folder: Path, kind: str, rate: int) -> None:
    """Until it is killed."""
    act = log(folder) if kind == "log" else commits(folder)
    at = time.monotonic()
    while True:
        act()
        at = max(at + 1 / rate, time.monotonic() - 0.1)  # what cannot be made up for is left out
        time.sleep(max(0.0, at - time.monotonic()))


def log(folder: Path) -> Callable[[], object]:
    file = os.open(folder / "app.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    return lambda: os.write(file, b"GET / HTTP/1.1 200\n")


def commits(folder: Path) -> Callable[[], object]:
    connection = sqlite3.connect(folder / "app.db", timeout=5, isolation_level=None)
    return lambda: connection.execute("INSERT INTO visits (at) VALUES (1.5)")


def floor(folder: Path) -> None:
    """Until it is killed."""
    connection = sqlite3.connect(folder / "app.db", timeout=5, isolation_level=None)
    connection.execute(_DUE, (0.0,)).fetchall()  # it opens the files
    watch = FileWatch(folder / "app.db", folder / "app.db-wal")
    watch.resume()
    while True:
        select.select([watch], [], [])
        time.sleep(_COMMIT)
        watch.seen()
        connection.execute("PRAGMA data_version").fetchone()
        connection.execute(_DUE, (time.time(),)).fetchall()


if __name__ == "__main__":
    if len(sys.argv) == 3:
        floor(Path(sys.argv[1]))
    elif len(sys.argv) == 4:
        load(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as scratch:
            main(Path(scratch))
