"""How a run that is over its time limit, or cancelled, is stopped: it is interrupted, then its worker is killed.

The steps are decided here, from the worker's slot alone; the watchdog carries them out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from supervisor.domain.process_health import CANCEL_GRACE, KILL_GRACE
from supervisor.supervision.exit_reason import NO_RUN, Run
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
