"""What happens to a job that must stop: ask, then interrupt, then kill."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from supervisor.system.scoreboard import Cancel, Snapshot, State

KILL_GRACE = 5.0  # seconds that an interrupted handler has for its own clean-up
CANCEL_GRACE = 5.0  # seconds for a handler to see ctx.cancelled, before it is interrupted


class Step(Enum):
    """What to do to a worker now."""

    NOTHING = "nothing"
    INTERRUPT = "interrupt"
    KILL = "kill"


@dataclass(slots=True)
class Enforcement:
    """One worker's job on its way to being stopped. Times are monotonic seconds."""

    run: tuple[int, int] = (0, 0)  # job id and token
    reason: Cancel = Cancel.NONE
    asked_at: float = 0.0
    interrupted_at: float = 0.0

    def cancel(self, job: int, token: int, now: float) -> None:
        """Somebody wants this run stopped. In a batch a job cannot be stopped alone: it runs to its end."""
        if self.run != (job, token):
            self.run, self.reason, self.asked_at, self.interrupted_at = (
                (job, token),
                Cancel.REQUESTED,
                now,
                0.0,
            )

    def next_step(self, slot: Snapshot, now: float) -> Step:
        """Judge a worker's slot. After INTERRUPT the reason says what to write into the cancel request."""
        current = (slot.job, slot.token)
        if slot.job == 0 or slot.state not in (State.BUSY, State.DRAINING):
            return Step.NOTHING
        if slot.deadline and now >= slot.deadline and not (self.run == current and self.interrupted_at):
            self.run, self.reason, self.interrupted_at = current, Cancel.TIMEOUT, now
            return Step.INTERRUPT
        if not self._concerns(slot):
            return Step.NOTHING
        if self.interrupted_at:
            return Step.KILL if now >= self.interrupted_at + KILL_GRACE else Step.NOTHING
        if now >= self.asked_at + CANCEL_GRACE:
            self.interrupted_at = now
            return Step.INTERRUPT
        return Step.NOTHING

    def _concerns(self, slot: Snapshot) -> bool:
        """Whether the run in the slot is the one to be stopped; not a whole batch for one job of it."""
        return self.run == (slot.job, slot.token) and not (slot.batch > 1 and self.reason is Cancel.REQUESTED)

    def due(self, slot: Snapshot) -> float | None:
        """When to look again, in monotonic seconds; None while nothing is running or limited."""
        if slot.job == 0:
            return None
        times = [slot.deadline] if slot.deadline else []
        if self._concerns(slot):
            if self.interrupted_at:
                return self.interrupted_at + KILL_GRACE
            times.append(self.asked_at + CANCEL_GRACE)
        return min(times, default=None)
