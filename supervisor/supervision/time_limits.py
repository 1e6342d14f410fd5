"""How a run that is over its time limit, or cancelled, is stopped: it is interrupted, then its worker is killed.

The steps are decided here, from the worker's slot alone; the watchdog carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.domain.job import RunKey
from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE
from supervisor.supervision.exit_reason import NO_RUN
from supervisor.system.slot import Cancel, Snapshot, State

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
    until its worker is killed. `requests` are cancel requests, one per run; `run` is the run being stopped, for
    `reason`. `due` is when to look again; None while nothing is running or limited.
    """

    cancel_grace: float = CANCEL_GRACE
    kill_grace: float = KILL_GRACE
    requests: dict[RunKey, float] = field(default_factory=dict)
    run: RunKey = NO_RUN
    reason: Cancel = Cancel.NONE
    interrupted_at: float = 0.0
    repeat_at: float = 0.0
    due: float | None = None

    def cancel(self, job: int, token: int, now: float) -> None:
        """Request that this run stops. A job in a batch cannot be stopped alone: it runs to its end."""
        if (job, token) not in self.requests:
            if len(self.requests) >= _MOST_REQUESTS:
                del self.requests[next(iter(self.requests))]
            self.requests[job, token] = now

    def next_step(self, slot: Snapshot, now: float) -> Step:
        """The next step for a worker's slot. After INTERRUPT, `reason` is the value for the cancel request."""
        run, self.due = (slot.job, slot.token), None
        if slot.job == 0 or slot.state not in (State.BUSY, State.DRAINING):
            return Step.NOTHING
        # Another run may have blocked the event loop of both: for that time the worker extends the limit of this one.
        extended = slot.places > 1 and self.reason is Cancel.TIMEOUT and slot.deadline > self.interrupted_at
        if self.run == run and self.interrupted_at and not extended:
            return self._after_interruption(now)
        limits = [(slot.deadline, Cancel.TIMEOUT)] if slot.deadline else []
        if run in self.requests and slot.batch <= 1:  # never a whole batch for one job of it
            limits.append((max(self.requests[run], slot.started) + self.cancel_grace, Cancel.REQUESTED))
        for at, reason in limits:
            if now >= at:
                self.run, self.reason, self.interrupted_at, self.repeat_at = run, reason, now, now + _REPEAT
                self.due = min(self.repeat_at, now + self.kill_grace)
                return Step.INTERRUPT
        self.due = min((at for at, _ in limits), default=None)
        return Step.NOTHING

    def _after_interruption(self, now: float) -> Step:
        """A signal that arrives while the stacks are written may leave the handler in a call that the kernel restarts:
        without another one it would never know of the first.
        """
        kill_at = self.interrupted_at + self.kill_grace
        step = Step.KILL if now >= kill_at else Step.REPEAT if now >= self.repeat_at else Step.NOTHING
        if step is Step.REPEAT:
            self.repeat_at = now + (now - self.interrupted_at)
        self.due = min(self.repeat_at, kill_at)
        return step
