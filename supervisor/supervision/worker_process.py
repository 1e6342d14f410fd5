"""One worker as the supervisor sees it, from the request to fork it to its end.

    asked ──its template has forked it──▶ forked ──it is set up──▶ ready

At each of these stages it may be asked to leave (`draining`), and may end. When its end has been reported, only its
slot is still in use, until the maintainer has settled its jobs.

A job in it is stopped in three steps: request, interrupt, kill (`TerminationLadder`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, NamedTuple

from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE, Signs
from supervisor.supervision.exit_reason import NO_RUN, Kill, Run
from supervisor.supervision.release import Release
from supervisor.supervision.templates import TemplateProcess
from supervisor.supervision.worker_output import WorkerOutput
from supervisor.system import ending, signals
from supervisor.system.slot import Cancel, RecycleReason, Slot, Snapshot, State
from supervisor.telemetry import events

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


RELOADED, OVER_MEMORY, CAUTIOUS = "reload", "max_memory", "cautious"
RECYCLED = {
    RecycleReason.OLD: "max_jobs_per_worker",
    RecycleReason.LARGE: OVER_MEMORY,
    RecycleReason.FAR_LARGE: OVER_MEMORY,
    RecycleReason.LEAKY: "open_files",
    RecycleReason.CHANGED: "process_changed",
    RecycleReason.INTERRUPTED: "interrupted",
}
"""Why a worker asks for a successor: the words of metrics and the log."""

WHY_REPLACED = {
    "max_jobs_per_worker": "near max_jobs_per_worker",
    OVER_MEMORY: "over max_memory",
    "open_files": "too many files left open by its jobs",
    "process_changed": "its process was changed by a job",
    "interrupted": "what an interrupted job has begun may go on",
    CAUTIOUS: "cautious for long enough",
}
"""The same for people."""


class Stage(IntEnum):
    """How far a worker has come."""

    ASKED = 1  # requested from its template
    FORKED = 2  # it has a process
    READY = 3  # it has been set up


class Request(NamedTuple):
    """What is asked of a template: one worker with this code. `number` is that of its slot.

    With `caution` the worker is cautious: so many outcomes were lost with the one that it replaces.
    """

    name: str
    incarnation: str
    number: int
    slot: Slot
    release: Release
    template: TemplateProcess
    device: str | None = None
    caution: int = 0


@dataclass(slots=True)
class Process:
    """Its process; without a pid before it is forked. `output` is the reading end of its stderr."""

    pid: int = 0
    pidfd: int = -1
    output: WorkerOutput | None = None

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self.output is not None:
            self.output.close()
            self.output = None


@dataclass(slots=True)
class End:
    """How it ends, as far as is known. `at` is 0.0 while it lives; the wait status may come later. `swept`: no process
    is left that its handlers have started.
    """

    at: float = 0.0
    status: int | None = None
    peak_memory: int | None = None
    killed: Kill | None = None
    swept: bool = False


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


@dataclass(slots=True)
class Watched:
    """What the watchdog remembers of it."""

    ladder: TerminationLadder
    late: Signs | None = None  # since when its heartbeat is late
    overdue_since: float = 0.0  # its teardown was found to take too long


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """One worker, created when it is requested. Times are monotonic seconds.

    `draining`: it leaves after its job. `stale` says why it should be replaced, as one word; "" if it should not. In a
    pool with spares it takes no job before it is `serving`.
    """

    request: Request
    asked_at: float
    stage: Stage = Stage.ASKED
    draining: bool = False
    serving: bool = field(init=False)
    stale: str = ""
    process: Process = field(default_factory=Process)
    end: End = field(default_factory=End)
    memory: Memory = field(default_factory=Memory)
    watched: Watched = field(init=False)

    def __post_init__(self) -> None:
        settings = self.release.settings
        self.serving = not settings.spares
        self.watched = Watched(TerminationLadder(settings.cancel_grace, settings.kill_grace))

    # Questions

    @property
    def release(self) -> Release:
        """The code that it runs, with its settings."""
        return self.request.release

    @property
    def slot(self) -> Slot:
        return self.request.slot

    @property
    def living(self) -> bool:
        """Whether it is alive, or will be, as far as is known."""
        return not self.end.at

    @property
    def is_ready(self) -> bool:
        return self.stage is Stage.READY and self.living and not self.draining

    @property
    def leaving(self) -> bool:
        return self.draining and self.living

    # Transitions

    def forked(self, process: Process, now: float) -> None:
        """It has a process. Its start-up time begins now: the template's imports may have taken minutes."""
        self.process, self.asked_at = process, now
        self.slot.requests.start()
        self.stage = max(self.stage, Stage.FORKED)
        if self.draining:
            self.signal(signals.DRAIN)
        if self.end.killed is not None:
            self.signal(9)

    def notice_ready(self, slot: Snapshot) -> bool:
        """Check whether it has been set up since the last check, also if it has ended since then; and whether it leaves
        by itself, after max_jobs_per_worker for example.
        """
        set_up = slot.state in (State.IDLE, State.BUSY, State.SPARE) or slot.ceased_at
        became_ready = self.stage is Stage.FORKED and bool(set_up)
        if became_ready:
            self.stage = Stage.READY
        if slot.ceased_at and self.stage is Stage.READY:
            self.draining = True
        return became_ready

    def replace(self, why: str) -> None:
        """A successor is started for it, and then it leaves. The first reason counts."""
        if not self.stale:
            self.stale = why
            events(process="supervisor").info("replacement_planned", **named(self), reason=why)

    def drain(self) -> None:
        """Let it finish its job and leave."""
        if self.living and not self.draining:
            self.draining = True
            self.slot.requests.drain()
            self.signal(signals.DRAIN)

    def serve(self) -> None:
        """Let a spare take jobs."""
        self.serving = True
        self.slot.requests.serve()
        self.signal(signals.INTERRUPT)  # it has no run that this could interrupt; it wakes up

    def kill(self, reason: str, run: Run | None = None) -> None:
        """Kill it because of its current run, or of this run. The first reason counts."""
        if self.end.killed is None:
            self.end.killed = Kill(reason, self.slot.work.run if run is None else run)
        self.signal(9)

    def ended(self, now: float, status: int | None = None, peak_memory: int | None = None) -> None:
        """Record that its process is dead or was never started."""
        end = self.end
        end.at = end.at or now
        if status is not None:
            end.status, end.peak_memory = status, peak_memory

    def signal(self, number: int) -> None:
        if self.process.pidfd >= 0:
            ending.send_signal(self.process.pidfd, number)


def named(worker: WorkerProcess) -> dict[str, Any]:
    """What an event says of it."""
    return {"pool": worker.release.pool, "worker": worker.request.name, "pid": worker.process.pid}


def is_idle(worker: WorkerProcess) -> bool:
    """Whether it has no job, because none is due, because it is a spare, or because it is still being set up."""
    return worker.slot.read().state in (State.IDLE, State.STARTING, State.SPARE)
