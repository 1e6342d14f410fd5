"""One worker as the supervisor sees it, from the request to fork it to its end.

    asked ──its template has forked it──▶ forked ──it is set up──▶ ready

At each of these stages it may be asked to leave (`draining`), and may end. When its end has been reported, only its
slot is still in use, until the maintainer has settled its jobs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from supervisor.domain.job import RunKey
from supervisor.domain.process_health import Signs
from supervisor.supervision.exit_reason import Cause, Kill
from supervisor.supervision.release import Release
from supervisor.supervision.templates import TemplateProcess
from supervisor.supervision.time_limits import TerminationLadder
from supervisor.supervision.worker_output import WorkerOutput
from supervisor.system import ending, signals
from supervisor.system.slot import RecycleReason, Slot, Snapshot, State
from supervisor.telemetry import events

RELOADED, OVER_MEMORY, CAUTIOUS = "reload", "max_memory", "cautious"
RECYCLED = {
    RecycleReason.OLD: "max_jobs_per_worker",
    RecycleReason.LARGE: OVER_MEMORY,
    RecycleReason.FAR_LARGE: OVER_MEMORY,
    RecycleReason.LEAKY: "open_files",
    RecycleReason.CHANGED: "process_changed",
    RecycleReason.INTERRUPTED: "interrupted",
}
"""Why a worker is replaced, as one word."""


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
class Watched:
    """What was found of it at the last looks: bytes of memory of it and its child processes, and monotonic seconds.

    `ladder` has its runs that are to be stopped.
    """

    ladder: TerminationLadder
    late: Signs | None = None  # since when its heartbeat is late
    overdue_since: float = 0.0  # its teardown was found to take too long
    unique: int = 0
    on_device: int = 0
    resident: int = 0
    done: int = -1  # jobs, when its memory was measured
    measured_at: float = 0.0

    @property
    def has_settled(self) -> bool:
        """Whether it was measured behind a job: before its first one, the worker may still grow to its usual size."""
        return self.done > 0


@dataclass(eq=False, slots=True)
class WorkerProcess:
    """One worker, created when it is requested. Times are monotonic seconds.

    `draining`: it leaves after its job. `stale` says why it should be replaced, as one word; "" if it should not. In a
    pool with spares it takes no job before it is `serving`.
    """

    request: Request
    asked_at: float
    set_up: bool = False  # it has been ready
    draining: bool = False
    serving: bool = field(init=False)
    stale: str = ""
    process: Process = field(default_factory=Process)
    end: End = field(default_factory=End)
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
        return self.set_up and self.living and not self.draining

    @property
    def leaving(self) -> bool:
        return self.draining and self.living

    @property
    def is_typical(self) -> bool:
        """Before the end of its set-up it is smaller, and one from before a reload may differ."""
        return self.is_ready and self.release.current

    @property
    def is_idle(self) -> bool:
        """Whether it has no job, because none is due, because it is a spare, or because it is still being set up."""
        return self.slot.read().state in (State.IDLE, State.STARTING, State.SPARE)

    # Transitions

    def forked(self, process: Process, now: float) -> None:
        """It has a process. Its start-up time begins now: the template's imports may have taken minutes."""
        self.process, self.asked_at = process, now
        self.slot.page.start = 1
        if self.draining:
            self.process.signal(signals.DRAIN)
        if self.end.killed is not None:
            self.process.signal(9)

    def notice_ready(self, slot: Snapshot) -> bool:
        """Check whether it has been set up since the last check, also if it has ended since then; and whether it leaves
        by itself, after max_jobs_per_worker for example.
        """
        before = self.set_up
        works = slot.state in (State.IDLE, State.BUSY, State.SPARE) or slot.ceased_at > 0
        self.set_up = before or (self.process.pid > 0 and works)
        if slot.ceased_at and self.set_up:
            self.draining = True
        return self.set_up and not before

    def replace(self, why: str) -> None:
        """A successor is started for it, and then it leaves. The first reason counts."""
        if not self.stale:
            self.stale = why
            events(process="supervisor").info("replacement_planned", **named(self), reason=why)

    def drain(self) -> None:
        """Let it finish its job and leave."""
        if self.living and not self.draining:
            self.draining = True
            self.slot.page.drain = 1
            self.process.signal(signals.DRAIN)

    def serve(self) -> None:
        """Let a spare take jobs."""
        self.serving = True
        self.slot.page.serve = 1
        self.process.signal(signals.INTERRUPT)  # it has no run that this could interrupt; it wakes up

    def kill(self, reason: Cause, run: RunKey | None = None) -> None:
        """Kill it because of its current run, or of this run. The first reason counts."""
        if self.end.killed is None:
            self.end.killed = Kill(reason, self.slot.page.run if run is None else run)
        self.process.signal(9)

    def ended(self, now: float, status: int | None = None, peak_memory: int | None = None) -> None:
        """Record that its process is dead or was never started."""
        end = self.end
        end.at = end.at or now
        if status is not None:
            end.status, end.peak_memory = status, peak_memory


def named(worker: WorkerProcess) -> dict[str, Any]:
    """What an event says of it."""
    return {"pool": worker.release.pool, "worker": worker.request.name, "pid": worker.process.pid}
