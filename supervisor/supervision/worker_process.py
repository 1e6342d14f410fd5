"""The supervisor's view of one worker: a state machine, from the request to fork it to its end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import IntEnum

from supervisor.config.settings import PoolSettings
from supervisor.domain.liveness import Signs
from supervisor.supervision.exit_reason import Kill
from supervisor.supervision.release import Release
from supervisor.supervision.template_process import TemplateProcess
from supervisor.supervision.termination import NO_RUN, Run, TerminationLadder
from supervisor.supervision.worker_output import WorkerOutput
from supervisor.system import ending, signals
from supervisor.system.slot import Slot, Snapshot, State

STATUS_PATIENCE = 0.2  # seconds to wait for the template's report of how a worker ended


class Stage(IntEnum):
    """The life cycle of a worker. A worker only moves forward.

    asked → forked → ready → draining → ended; draining and ended may come at any time. When its end has been reported,
    only its slot is still in use, until the maintainer has settled its jobs.
    """

    ASKED = 1  # requested from its template
    FORKED = 2  # it has a process
    READY = 3  # it has been set up
    DRAINING = 4  # asked to leave after its job
    ENDED = 5  # its process is dead, or was never started


@dataclass(slots=True)
class Memory:
    """The last measurement of a worker and its child processes; bytes, and monotonic seconds."""

    unique: int = 0
    on_device: int = 0
    resident: int = 0
    done: int = -1  # jobs, when it was measured
    measured_at: float = 0.0

    @property
    def has_settled(self) -> bool:
        """Whether it was measured behind a job: before its first one, the worker may still grow to its usual size."""
        return self.done > 0


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """One worker, created when it is requested. Times are monotonic seconds.

    `release` is the code that it runs, with its settings. `stale` says why it should be replaced, "" if it should not.
    In a pool with spares it takes no job before it is `serving`. When it is `swept`, no process is left that its
    handlers have started. With `caution` it is cautious: so many outcomes were lost with the one that it replaces.
    """

    name: str
    incarnation: str
    number: int  # of its slot
    slot: Slot
    release: Release
    template: TemplateProcess
    asked_at: float
    device: str | None = None
    caution: int = 0
    stage: Stage = Stage.ASKED
    was_ready: bool = False
    serving: bool = field(init=False)
    swept: bool = False
    pid: int = 0
    pidfd: int = -1
    output: WorkerOutput | None = None
    stale: str = ""
    ended_at: float = 0.0
    status: int | None = None
    peak_memory: int | None = None
    killed: Kill | None = None
    overdue_since: float = 0.0  # its teardown was found to take too long
    late: Signs | None = None
    memory: Memory = field(default_factory=Memory)
    ladder: TerminationLadder = field(init=False)

    def __post_init__(self) -> None:
        self.serving = not self.settings.spares
        self.ladder = TerminationLadder(self.settings.cancel_grace, self.settings.kill_grace)

    # Questions

    @property
    def settings(self) -> PoolSettings:
        return self.release.settings

    @property
    def pool(self) -> str:
        return self.release.pool

    @property
    def living(self) -> bool:
        """Whether it is alive, or will be, as far as is known."""
        return self.stage < Stage.ENDED

    @property
    def running(self) -> bool:
        """Whether it has a running process."""
        return self.pid > 0 and self.stage < Stage.ENDED

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.READY

    @property
    def leaving(self) -> bool:
        return self.stage is Stage.DRAINING

    @property
    def explained_at(self) -> float | None:
        """When its end must be handled even if its cause is not known yet; None before its end."""
        if self.stage is not Stage.ENDED:
            return None
        return self.ended_at if self.status is not None else self.ended_at + STATUS_PATIENCE

    # Transitions

    def forked(self, pid: int, pidfd: int, output: WorkerOutput, now: float) -> None:
        """It has a process. Its start-up time begins now: the template's imports may have taken minutes."""
        self.pid, self.pidfd, self.output, self.asked_at = pid, pidfd, output, now
        self.slot.requests.start()
        if self.stage is Stage.DRAINING:
            self.signal(signals.DRAIN)
        elif self.stage is Stage.ASKED:
            self.stage = Stage.FORKED
        if self.killed is not None:
            self.signal(9)

    def notice_ready(self, slot: Snapshot) -> bool:
        """Check whether it has been set up since the last check, also if it has ended since then; and whether it leaves
        by itself, after max_jobs_per_worker for example.
        """
        set_up = slot.state in (State.IDLE, State.BUSY, State.SPARE) or slot.ceased_at
        became_ready = not self.was_ready and self.stage in (Stage.FORKED, Stage.ENDED) and bool(set_up)
        if became_ready:
            self.was_ready = True
            self.stage = max(self.stage, Stage.READY)
        if slot.ceased_at and self.stage is Stage.READY:
            self.stage = Stage.DRAINING
        return became_ready

    def drain(self) -> None:
        """Let it finish its job and leave."""
        if self.stage < Stage.DRAINING:
            self.stage = Stage.DRAINING
            self.slot.requests.drain()
            self.signal(signals.DRAIN)

    def serve(self) -> None:
        """Let a spare take jobs."""
        self.serving = True
        self.slot.requests.serve()
        self.signal(signals.INTERRUPT)  # it has no run that this could interrupt; it wakes up

    def kill(self, reason: str, run: Run | None = None) -> None:
        """Kill it because of its current run, or of this run. The first reason counts."""
        if self.killed is None:
            if run is None:
                slot = self.slot.read()
                run = (slot.job, slot.token) if slot.job else NO_RUN
            self.killed = Kill(reason, run)
        self.signal(9)

    def end(self, now: float, status: int | None = None, peak_memory: int | None = None) -> None:
        """Record that its process is dead or was never started; its wait status may come later."""
        if self.stage < Stage.ENDED:
            self.stage, self.ended_at = Stage.ENDED, now
        if status is not None:
            self.status, self.peak_memory = status, peak_memory

    def signal(self, number: int) -> None:
        if self.pidfd >= 0:
            ending.send_signal(self.pidfd, number)

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self.output is not None:
            self.output.close()
            self.output = None
