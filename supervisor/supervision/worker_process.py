"""The supervisor's view of one worker: a state machine, from the request to fork it to its end.

A job in it is stopped in three steps: request, interrupt, kill."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum, IntEnum

from supervisor.config.settings import PoolSettings
from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE, Signs
from supervisor.supervision.exit_reason import NO_RUN, Kill, Run
from supervisor.supervision.release import Release
from supervisor.supervision.template_process import TemplateProcess
from supervisor.supervision.worker_output import WorkerOutput
from supervisor.system import ending, signals
from supervisor.system.slot import Cancel, Slot, Snapshot, State

_REPEAT = 0.1  # seconds until an interruption is repeated for the first time
_MOST_REQUESTS = 1000  # per worker; beyond that the oldest is dropped


class Step(Enum):
    """What to do to a worker now."""

    NOTHING = "nothing"
    INTERRUPT = "interrupt"
    REPEAT = "interrupt again"
    KILL = "kill"


@dataclass(slots=True)
class TerminationLadder:
    """The runs of one worker that are to be stopped. Times are monotonic seconds.

    A cancelled handler has `cancel_grace` seconds until it is interrupted, an interrupted one `kill_grace` seconds
    until its worker is killed. `requests` are cancel requests, one per run; `run` is the run being
    stopped, for `reason`.
    """

    cancel_grace: float = CANCEL_GRACE
    kill_grace: float = KILL_GRACE
    requests: dict[Run, float] = field(default_factory=dict)
    run: Run = NO_RUN
    reason: Cancel = Cancel.NONE
    interrupted_at: float = 0.0
    repeat_at: float = 0.0

    def cancel(self, job: int, token: int, now: float) -> None:
        """Request that this run stops. A job in a batch cannot be stopped alone: it runs to its end."""
        if (job, token) not in self.requests:
            if len(self.requests) >= _MOST_REQUESTS:
                del self.requests[next(iter(self.requests))]
            self.requests[job, token] = now

    def next_step(self, slot: Snapshot, now: float) -> Step:
        """The next step for a worker's slot. After INTERRUPT, `reason` is the value for the cancel request."""
        current = (slot.job, slot.token)
        if slot.job == 0 or slot.state not in (State.BUSY, State.DRAINING):
            return Step.NOTHING
        if self.run == current and self.interrupted_at and not self._extended(slot):
            if now >= self.interrupted_at + self.kill_grace:
                return Step.KILL
            return self._repeat(now)
        if slot.deadline and now >= slot.deadline:
            return self._interrupt(current, Cancel.TIMEOUT, now)
        ends = self._grace_ends(slot)
        if ends is not None and now >= ends:
            return self._interrupt(current, Cancel.REQUESTED, now)
        return Step.NOTHING

    def _extended(self, slot: Snapshot) -> bool:
        """Another run has blocked the event loop of both, for which time the worker extends the limit of this one."""
        return slot.places > 1 and self.reason is Cancel.TIMEOUT and slot.deadline > self.interrupted_at

    def _interrupt(self, run: Run, reason: Cancel, now: float) -> Step:
        self.run, self.reason, self.interrupted_at = run, reason, now
        self.repeat_at = now + _REPEAT
        return Step.INTERRUPT

    def _repeat(self, now: float) -> Step:
        """A signal that arrives while the stacks are written may leave the handler in a call that the kernel restarts:
        without another one it would never know of the first.
        """
        if now < self.repeat_at:
            return Step.NOTHING
        self.repeat_at = now + (now - self.interrupted_at)
        return Step.REPEAT

    def _grace_ends(self, slot: Snapshot) -> float | None:
        """When a cancelled run is interrupted; never a whole batch for one job of it."""
        asked = self.requests.get((slot.job, slot.token))
        return None if asked is None or slot.batch > 1 else max(asked, slot.started) + self.cancel_grace

    def due(self, slot: Snapshot) -> float | None:
        """When to check again, in monotonic seconds; None while nothing is running or limited."""
        if slot.job == 0:
            return None
        if self.run == (slot.job, slot.token) and self.interrupted_at and not self._extended(slot):
            return min(self.repeat_at, self.interrupted_at + self.kill_grace)
        times = [slot.deadline] if slot.deadline else []
        ends = self._grace_ends(slot)
        return min(times if ends is None else [*times, ends], default=None)


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
