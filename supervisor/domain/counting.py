"""What a settlement counts as, for those who add up what has been finished."""

from __future__ import annotations

from typing import NamedTuple

from supervisor.domain.job import Status
from supervisor.domain.settlement import Settlement

LONGEST_WAIT = 365 * 86_400.0  # seconds; due for longer than that means "before all others", not that it has waited


class Ended(NamedTuple):
    """A run that ended well or failed. `run` and `wait` are its seconds, None for what nobody knows."""

    type: str
    failed: bool
    run: float | None
    wait: float | None


def ended(settlement: Settlement, until: float) -> Ended | None:
    """The run that this settles; None if it was cancelled, or gave its job back uncharged.

    `until` is the Unix time at which it was over at the latest, for runs that nobody has timed.
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
    """Seconds from when a job could have run to when it did."""
    wait = started - due_at
    return wait if 0.0 <= wait <= LONGEST_WAIT else 0.0


def _seconds(settlement: Settlement) -> float | None:
    usage, failure = settlement.usage, settlement.failure
    if usage is not None and usage.duration is not None:
        return usage.duration
    return None if failure is None else failure.duration
