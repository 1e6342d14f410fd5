"""The supervisor's view of one worker."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from supervisor.domain.liveness import Signs
from supervisor.processes.deadlines import Enforcement
from supervisor.processes.launcher import Launcher
from supervisor.system import kernel
from supervisor.system.scoreboard import Slot, State

if TYPE_CHECKING:
    from supervisor.processes.pool import Pool

TAIL_BYTES = 8192  # of a worker's stderr, kept for job_errors


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """From the request to fork it until its death is acknowledged. Times are monotonic seconds."""

    name: str
    incarnation: str
    number: int  # of its slot
    slot: Slot
    launcher: Launcher
    pool: Pool
    asked_at: float
    device: str | None = None
    pid: int = 0
    pidfd: int = -1
    stderr: int = -1
    tail: bytes = b""
    status: int | None = None
    peak_memory: int | None = None
    dead_at: float | None = None
    was_ready: bool = False
    stale: str = ""  # why a successor is wanted
    draining: bool = False
    killed_for: str = ""
    memory: int = 0
    measured_done: int = -1
    late: Signs | None = None
    enforcement: Enforcement = field(default_factory=Enforcement)

    @property
    def state(self) -> State:
        return self.slot.read().state

    @property
    def ready(self) -> bool:
        return self.state in (State.IDLE, State.BUSY)

    def signal(self, number: int) -> None:
        if self.pidfd >= 0:
            kernel.send_signal(self.pidfd, number)

    def end(self, status: int, peak_memory: int) -> None:
        """Its wait status has come."""
        self.status, self.peak_memory = status, peak_memory
        self.dead_at = self.dead_at or time.monotonic()

    def kill(self, reason: str) -> None:
        """Kill it; the reason decides what its job is charged."""
        if not self.killed_for:
            self.killed_for = reason
        self.signal(9)

    def read_stderr(self) -> bool:
        """Pass on what the worker wrote and keep its end. Never blocks. False when nobody can write any more."""
        while self.stderr >= 0:
            try:
                data = os.read(self.stderr, 65536)
            except BlockingIOError:
                return True
            if not data:
                break
            self.tail = (self.tail + data)[-TAIL_BYTES:]
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.buffer.write(data)
                sys.stderr.flush()
        return False

    def close(self) -> None:
        for descriptor in (self.pidfd, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self.pidfd = self.stderr = -1
