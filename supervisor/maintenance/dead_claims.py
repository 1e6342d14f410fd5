"""Settles what a dead worker held; a retry repeats the first decision."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement
from supervisor.maintenance.counting import Counter
from supervisor.store.base import ClaimLocks
from supervisor.telemetry import events

Decide = Callable[[list[Claim]], list[Settlement]]


class DeadClaims:
    """Decisions are kept until they are written: once some of a worker's jobs have gone back to the queue, nobody can
    tell which of them had begun.
    """

    def __init__(self, locks: ClaimLocks, counter: Counter) -> None:
        self._locks = locks
        self._counter = counter
        self._decided: dict[str, list[Settlement]] = {}
        self._log = events(process="maintainer")

    def settle(self, incarnation: str, name: str, decide: Decide, now: float) -> tuple[int, list[Settlement]]:
        """Returns how many claims were settled, and all decisions. Raises StoreError if one of them is refused."""
        settlements = self._decided.get(incarnation) or decide(self._locks.held_by(incarnation))
        self._decided[incarnation] = settlements
        count = self._locks.settle_dead(incarnation, settlements, now, worker=name)
        del self._decided[incarnation]
        self._counter.settled(settlements, count, now)
        self._tell_quarantined(settlements)
        return count, settlements

    def _tell_quarantined(self, settlements: list[Settlement]) -> None:
        for settlement in settlements:
            if settlement.status is Status.QUARANTINED:
                why = None if settlement.failure is None else settlement.failure.message
                self._log.error("job_quarantined", job=settlement.job_id, error=why, hint="its workers died repeatedly")
