"""Random faults for a while, then the ledger: `python -m tests.soak.soak --seconds 600 [--seed N]`.

Two supervisors work on one file while programs enqueue and a foreign poller claims by plain SQL. Workers,
templates, maintainers and supervisors are killed and stopped, configurations reloaded, pools scaled, jobs
cancelled. At the end everything is drained and compared: no job lost, none unexpected, every recorded
outcome backed by a run, repeats only where a fault was.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from supervisor import Status
from tests.site_under_test import Site, site, wait_for

POOLS = """
[defaults]
max_crashes = 100000
lock_time = "3s"
heartbeat_timeout = "2s"
shutdown_grace = "5s"
retry = { max_attempts = 1000, base = "20ms", max = "200ms" }
[pools.work]
handler = "jobs:work"
workers = 3
[pools.quick]
types = ["quick"]
handler = "jobs:work"
min_workers = 0
max_workers = 3
scale_down_delay = "500ms"
"""
FOREIGN = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
while True:
    row = db.execute("UPDATE jobs SET status = 'running' WHERE id = (SELECT id FROM jobs WHERE status = 'pending'"
                     " AND type = 'foreign' LIMIT 1) RETURNING id").fetchall()
    if row:
        db.execute("UPDATE jobs SET status = 'done' WHERE id = ?", row[0])
    time.sleep(0.01)
"""


class Soak:
    """One soak in one folder; everything random comes from one seed."""

    def __init__(self, place: Site, seed: int) -> None:
        self.site = place
        self.random = random.Random(seed)
        self.counts: collections.Counter[str] = collections.Counter()
        self.jobs: list[int] = []
        self.stopped: list[tuple[float, psutil.Process]] = []
        self.foreign: subprocess.Popen[bytes] | None = None

    def run(self, seconds: float) -> None:
        self.site.start(wait=False)
        self.site.start(wait=False)
        self._keep_foreign()
        end = time.monotonic() + seconds
        faults = self._faults()
        while time.monotonic() < end:
            self._enqueue()
            self._continue()
            fault = self.random.choices(list(faults), weights=list(faults.values()))[0]
            with contextlib.suppress(psutil.NoSuchProcess, IndexError, ProcessLookupError):
                fault()
            self._keep_alive()
            time.sleep(self.random.uniform(0.02, 0.3))
        for _, process in self.stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        self._keep_alive()

    def _faults(self) -> dict[Callable[[], None], float]:
        return {
            lambda: self._kill("worker", self._worker()): 8,
            lambda: self._kill("template", self._middle(template=True)): 2,
            lambda: self._kill("maintainer", self._middle(template=False)): 2,
            lambda: self._kill("supervisor", self._supervisor()): 1.5,
            lambda: self._stop("worker", self._worker()): 1.5,
            lambda: self._stop("maintainer", self._middle(template=False)): 0.5,
            lambda: self._stop("supervisor", self._supervisor()): 0.7,
            self._reload: 1,
            self._scale: 1,
            self._cancel: 1,
            self._kill_foreign: 0.5,
            self._terminate: 0.5,
        }

    # Whom it hits

    def _supervisor(self) -> psutil.Process:
        living = [p for p in self.site.supervisors if p.poll() is None]
        return psutil.Process(self.random.choice(living).pid)

    def _middle(self, *, template: bool) -> psutil.Process:
        children = self._supervisor().children()
        return self.random.choice([child for child in children if bool(child.children()) == template])

    def _worker(self) -> psutil.Process:
        return self.random.choice(self._middle(template=True).children())

    # What it does

    def _kill(self, what: str, process: psutil.Process) -> None:
        process.kill()
        self.counts[f"killed {what}"] += 1

    def _stop(self, what: str, process: psutil.Process) -> None:
        process.suspend()
        self.stopped.append((time.monotonic() + self.random.uniform(0.1, 6), process))
        self.counts[f"stopped {what}"] += 1

    def _continue(self) -> None:
        now = time.monotonic()
        for at, process in [entry for entry in self.stopped if entry[0] <= now]:
            self.stopped.remove((at, process))
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def _reload(self) -> None:
        self._supervisor().send_signal(signal.SIGHUP)
        self.counts["reloads"] += 1

    def _terminate(self) -> None:
        self._supervisor().send_signal(signal.SIGTERM)
        self.counts["terminated"] += 1

    def _scale(self) -> None:
        size = self.random.choice(["0", "1", "4", "auto"])
        self._command("scale", "work", size)
        self.counts["scaled"] += 1

    def _cancel(self) -> None:
        job = self.random.choice(self.jobs[-200:])
        self.site.rows("UPDATE jobs SET cancel_requested_at = 1 WHERE id = ? AND status = 'running'", job)
        self.counts["cancels"] += 1

    def _kill_foreign(self) -> None:
        if self.foreign is not None:
            self.foreign.kill()
            self.foreign.wait()
            self.foreign = None
            self.counts["killed foreign poller"] += 1
        self._keep_foreign()

    def _command(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "supervisor", *arguments, "-c", str(self.site.config)]
        subprocess.run(command, check=False, capture_output=True, cwd=self.site.folder)

    def _keep_alive(self) -> None:
        living = [p for p in self.site.supervisors if p.poll() is None]
        for _ in range(2 - len(living)):
            self.site.start(wait=False)
            self.counts["supervisors started"] += 1

    def _keep_foreign(self) -> None:
        if self.foreign is None:
            self.foreign = subprocess.Popen([sys.executable, "-c", FOREIGN, str(self.site.database)])

    def _enqueue(self) -> None:
        if self.site.count("pending") > 400:
            return
        for kind, count in (("work", 4), ("quick", 30), ("foreign", 2)):
            payloads = [{"seconds": self.random.choice([0, 0, 0, 0.01, 0.2 if kind == "work" else 0])}] * count
            self.jobs += self.site.queue.enqueue_many(kind, payloads)

    # The oracle

    def settle(self) -> list[str]:
        """Drain, then everything that is wrong."""
        self._command("scale", "work", "auto")
        self.site.rows("UPDATE job_meta SET value = '1' WHERE key = 'foreign_lock_time'")
        # A foreign claim whose poller was killed expires after its hour; nobody waits for that here.
        self.site.rows("UPDATE jobs SET lock_expires_at = 1 WHERE locked_by = 'foreign'")
        wait_for(lambda: self._unfinished() == 0, "the queue to drain", patience=120)
        if self.foreign is not None:
            self.foreign.kill()
            self.foreign.wait()
        for process in self.site.supervisors:
            if process.poll() is None:
                process.terminate()
        for process in self.site.supervisors:
            process.wait(30)
        return self._wrong()

    def _unfinished(self) -> int:
        [(count,)] = self.site.rows(
            "SELECT count(*) FROM jobs WHERE status IN ('pending', 'running') AND type <> 'never'"
        )
        return int(count)

    def _wrong(self) -> list[str]:
        wrong = []
        rows = self.site.rows("SELECT id, type, status, crashes FROM jobs WHERE type <> 'never'")
        known = {row[0] for row in rows}
        lost = set(self.jobs) - known
        if lost:
            wrong.append(f"{len(lost)} jobs vanished")
        starts: collections.Counter[int] = collections.Counter()
        ends: collections.Counter[int] = collections.Counter()
        for line in self.site.ledger.read_text().splitlines():
            what, job = line.split()[:2]
            (starts if what == "start" else ends)[int(job)] += 1
        unexpected = set(starts) - known
        if unexpected:
            wrong.append(f"{len(unexpected)} runs of unknown jobs")
        for job, kind, status, crashes in rows:
            if kind != "foreign" and status == "done" and not ends[job]:
                wrong.append(f"job {job} is done, but no run of it ended")
            if status not in ("done", "cancelled"):
                wrong.append(f"job {job} is {status}")
            if crashes > starts[job] and kind != "foreign":
                wrong.append(f"job {job} was charged {crashes} crashes in {starts[job]} runs")
        repeats = sum(count - 1 for count in starts.values() if count > 1)
        faults = sum(self.counts.values())
        # A fault repeats at most what its workers had begun or not yet settled.
        if repeats > faults * 6 * 64:
            wrong.append(f"{repeats} repeats for {faults} faults")
        if self.site.rows("PRAGMA integrity_check") != [("ok",)]:
            wrong.append("the file is damaged")
        by_status = collections.Counter(Status(row[2]).value for row in rows)
        print(f"jobs {len(rows)} {dict(by_status)}, runs {sum(starts.values())}, repeats {repeats}")
        return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(4), "little")
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"seed {seed}, {options.seconds:g} s, in {folder}", flush=True)
    with site(folder, POOLS) as place:
        soak = Soak(place, seed)
        try:
            soak.run(options.seconds)
            wrong = soak.settle()
        except (AssertionError, sqlite3.Error) as error:
            wrong = [str(error)]
        print(", ".join(f"{count} {what}" for what, count in sorted(soak.counts.items())))
    for line in wrong[:20]:
        print(f"WRONG: {line}")
    if wrong or options.keep:
        print(f"the folder with database, ledger and log is kept: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
        print("clean: nothing lost, nothing unexpected, one recorded outcome a job")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
