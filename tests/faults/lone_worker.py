"""One worker without a supervisor, as a process: to see what it leaves in its slot and in the table when it ends.

Run as `python -m tests.faults.lone_worker CONFIG BOARD CAUTIOUS`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from supervisor.config.reader import read
from supervisor.domain.recovery import JobPolicy
from supervisor.engine import open_engine
from supervisor.store.base import WorkerRecord
from supervisor.system import counters, run_log
from supervisor.system.scoreboard import Scoreboard, counters_of, run_logs_of
from supervisor.system.slot import Snapshot
from supervisor.telemetry import configure
from supervisor.worker.recorder import Recorder
from supervisor.worker.worker import Assignment, Worker
from tests.site_under_test import Site, wait_for

INCARNATION = "lone-1"


class LoneWorker:
    """Its process, and its slot in a scoreboard of its own."""

    def __init__(self, site: Site, *, cautious: bool = False) -> None:
        path = site.folder / f"board-{time.monotonic_ns()}"
        self.board = Scoreboard.create(path)
        self.slot = self.board.slot(1)
        self.slot.assign(INCARNATION, "lone-1")
        self.slot.page.start = 1
        self.wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE | os.EFD_CLOEXEC)
        arguments = [str(site.config), str(path), str(int(cautious)), str(self.wake)]
        with site.log.open("ab") as log:
            command = [sys.executable, "-m", "tests.faults.lone_worker", *arguments]
            root = str(Path(__file__).parents[2])
            self.process = subprocess.Popen(
                command,
                cwd=site.folder,
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONPATH": root},
                pass_fds=(self.wake,),
            )

    def ended(self) -> tuple[int, Snapshot]:
        """Its exit code and its last slot."""
        code = self.process.wait(20)
        os.close(self.wake)
        return code, self.slot.read()

    def drain(self) -> tuple[int, Snapshot]:
        self.slot.page.drain = 1
        os.eventfd_write(self.wake, 1)
        return self.ended()

    def rested(self, done: int) -> Snapshot:
        """Its slot once so many runs have ended and are committed."""

        def resting() -> Snapshot | None:
            snapshot = self.slot.read()
            return snapshot if snapshot.done >= done and not snapshot.unsettled else None

        found = wait_for(resting, f"{done} runs to be committed")
        assert found is not None
        return found


def main() -> None:
    config, path, cautious, wake = sys.argv[1:]
    settings = read(Path(config), None, None)
    sys.path.insert(0, str(settings.folder))
    [pool] = settings.pools.values()
    engine = open_engine(settings.database)
    board = Scoreboard.open(Path(path), writable=True)
    assert board is not None
    configure("json", "debug")
    recorder = Recorder()
    recorder.attach(run_log.shared(run_logs_of(board.path), 1))
    policy = JobPolicy(pool.retry, pool.max_crashes, pool.recover, pool.lock_time).encode()
    record = WorkerRecord(INCARNATION, "nobody", pool.name, "lone-1", os.getpid(), 1, policy, time.time())
    assignment = Assignment(
        pool,
        record,
        engine,
        board.slot(1),
        wake=int(wake),
        news=os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC),
        gate=board.gate,
        recorder=recorder,
        row=counters.shared(counters_of(board.path), 1),
        cautious=cautious == "1",
    )
    os._exit(Worker(assignment).run())


if __name__ == "__main__":
    main()
