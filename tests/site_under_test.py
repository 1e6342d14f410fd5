"""A small installation for tests: a folder with a configuration, handlers, a database and real processes.

The oracle is a ledger outside the system: handlers append one line at their start and one at their end to
a file opened with O_APPEND.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import psutil

from supervisor import Job, Queue, Status
from supervisor.system.scoreboard import Scoreboard, Snapshot

T = TypeVar("T")
PATIENCE = 20.0  # seconds until a condition that should hold at once counts as broken

HANDLERS = '''
import os, signal, subprocess, sys, time

def record(what, ctx):
    line = f"{what} {ctx.job_id} {ctx.token} {os.getpid()} {time.time()}\\n"
    fd = os.open("LEDGER", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, line.encode()); os.close(fd)

def noop(payload, ctx):
    return None

def work(payload, ctx):
    """Sleeps payload["seconds"], with everything written to the ledger."""
    record("start", ctx)
    end = time.monotonic() + payload.get("seconds", 0)
    while time.monotonic() < end:
        time.sleep(0.005)
    record("end", ctx)
    return {"pid": os.getpid()}

def once(payload, ctx):
    """Hangs in its first run, returns in the second."""
    record("start", ctx)
    if ctx.token == 1:
        time.sleep(60)
    return {"pid": os.getpid()}
'''


def wait_for(condition: Callable[[], T], what: str = "", patience: float = PATIENCE) -> T:
    """Wait until `condition` returns something true, and return that."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience:g} s: {what or condition}")
        time.sleep(0.002)


class Site:
    """One folder with everything a supervisor needs. `handlers` is the text of its jobs.py."""

    def __init__(self, folder: Path, config: str, handlers: str = HANDLERS) -> None:
        self.folder = folder
        self.database = folder / "app.db"
        self.url = f"sqlite:///{self.database}"
        self.ledger = folder / "ledger"
        self.config = folder / "supervisor.toml"
        self.log = folder / "log"
        self.configure(config)
        (folder / "jobs.py").write_text(handlers.replace("LEDGER", str(self.ledger)))
        self.queue = Queue(self.url)
        self.queue.enqueue("never", {}, delay="7d")  # makes the tables
        self.supervisors: list[subprocess.Popen[bytes]] = []

    def configure(self, config: str) -> None:
        self.config.write_text(f'database = "sqlite:///./app.db"\n{config}\n[log]\nformat = "json"\nlevel = "debug"\n')

    # Processes

    def start(self, *arguments: str, wait: bool = True, **options: Any) -> subprocess.Popen[bytes]:
        """Start `supervisor run` and wait until it is in the registry with its pools running."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "supervisor", "run", "-c", str(self.config), *arguments],
                stderr=log,
                stdout=log,
                cwd=self.folder,
                **options,
            )
        self.supervisors.append(process)
        if wait:
            wait_for(lambda: self.event("recovered", pid_of=process), f"a supervisor: {self.log.read_text()}")
        return process

    def stop(self, process: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> int:
        process.send_signal(how)
        return process.wait(PATIENCE)

    def close(self) -> None:
        for process in self.supervisors:
            if process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    for child in psutil.Process(process.pid).children(recursive=True):
                        with contextlib.suppress(psutil.NoSuchProcess):
                            child.resume()
                process.send_signal(signal.SIGCONT)
                process.terminate()
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        self.queue.close()

    # What is to be seen

    def events(self) -> list[dict[str, Any]]:
        """The log's events so far."""
        found = []
        if self.log.exists():
            for line in self.log.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        found.append(event)
        return found

    def event(
        self, name: str, *, pid_of: subprocess.Popen[bytes] | None = None, **fields: Any
    ) -> dict[str, Any] | None:
        """The first event of that name with these fields; after a given supervisor's start."""
        events = self.events()
        if pid_of is not None:
            starts = [
                n for n, e in enumerate(events) if e.get("event") == "supervisor_started" and e["pid"] == pid_of.pid
            ]
            events = events[starts[0] :] if starts else []
        for event in events:
            if event.get("event") == name and all(event.get(key) == value for key, value in fields.items()):
                return event
        return None

    def workers(self, pool: str = "") -> list[Snapshot]:
        """What the scoreboards of all registered supervisors show of living workers."""
        found = []
        for path in self.scoreboards():
            board = Scoreboard.open(path)
            if board is not None:
                slots = [board.slot(number).read() for number in range(1, board.highest + 1)]
                found += [s for s in slots if 1 <= s.state <= 4 and s.pid and s.name.startswith(pool)]
        return found

    def scoreboards(self) -> list[Path]:
        return [Path(row[0]) for row in self.rows("SELECT scoreboard FROM job_supervisors")]

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.database, timeout=30)) as connection, connection:
            return connection.execute(sql, parameters).fetchall()

    def job(self, job_id: int) -> Job:
        return self.queue.job(job_id)

    def count(self, status: str) -> int:
        return int(self.rows("SELECT count(*) FROM jobs WHERE status = ?", status)[0][0])

    def runs(self, what: str, job_id: int) -> list[tuple[int, int, float]]:
        """(token, pid, time) of each start or end of a job in the ledger."""
        if not self.ledger.exists():
            return []
        lines = [line.split() for line in self.ledger.read_text().splitlines()]
        return [(int(t), int(p), float(at)) for w, j, t, p, at in lines if w == what and int(j) == job_id]

    def running_pid(self, job_id: int) -> int:
        """The pid in which a job's handler is running; waits until it has begun."""
        return wait_for(lambda: self.runs("start", job_id), f"job {job_id} to start")[-1][1]

    def done(self, job_id: int, patience: float = PATIENCE) -> Job:
        job = self.queue.wait(job_id, timeout=patience)
        assert job.status is Status.DONE, (job, self.log.read_text()[-4000:])
        return job

    def check_file(self) -> None:
        assert self.rows("PRAGMA integrity_check") == [("ok",)]


@contextlib.contextmanager
def site(folder: Path, config: str, handlers: str = HANDLERS) -> Iterator[Site]:
    made = Site(folder, config, handlers)
    try:
        yield made
    finally:
        made.close()


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def kill(pid: int) -> float:
    """KILL, and the time of it."""
    at = time.time()
    os.kill(pid, signal.SIGKILL)
    return at
