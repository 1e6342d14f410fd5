"""How a settlement is counted in the totals of finished runs."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.domain.job import Status
from supervisor.domain.settlement import Settlement

LONGEST_WAIT = 365 * 86_400.0  # seconds; a due time further back means "before all others", not a real wait


class Ended(NamedTuple):
    """A run that succeeded or failed. `run` and `wait` are its seconds, None if unknown."""

    type: str
    failed: bool
    run: float | None
    wait: float | None


def ended(settlement: Settlement, until: float) -> Ended | None:
    """The run that this settles; None if it was cancelled, or its job returned uncharged.

    `until` is the latest Unix time at which it ended, for runs that were not timed.
    """
    claim, failure = settlement.claim, settlement.failure
    failed = settlement.status is not Status.DONE
    if claim is None or (failed and (failure is None or failure.kind == "cancelled")):
        return None
    started = settlement.started_at
    run = _seconds(settlement)
    if run is None and started is not None:
        run = max(0.0, until - started)
    if started is None and run is not None:
        started = until - run
    return Ended(claim.type, failed, run, None if started is None else waited(claim.due_at, started))


def waited(due_at: float, started: float) -> float:
    """Seconds from the time a job could have run to the time it did."""
    wait = started - due_at
    return wait if 0.0 <= wait <= LONGEST_WAIT else 0.0


def _seconds(settlement: Settlement) -> float | None:
    usage, failure = settlement.usage, settlement.failure
    if usage is not None and usage.duration is not None:
        return usage.duration
    return None if failure is None else failure.duration
