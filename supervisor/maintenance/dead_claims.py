"""Settles what a dead worker held; a retry repeats the first decision."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.domain.errors import LeaseHeld
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.maintenance.counting import Counter
from supervisor.store.base import ClaimLocks
from supervisor.system import settled_notice

Decide = Callable[[list[Claim]], list[Settlement]]


class DeadClaims:
    """Decisions are kept until they are written: once some of a worker's jobs have gone back to the queue, nobody can
    tell which of them had begun.
    """

    def __init__(self, locks: ClaimLocks, counter: Counter) -> None:
        self._locks = locks
        self._counter = counter
        self._decided: dict[str, list[Settlement]] = {}

    def settle(
        self, incarnation: str, name: str, decide: Decide, now: float, supervisor: str = ""
    ) -> tuple[int, list[Settlement]]:
        """Returns how many claims were settled, and all decisions. Raises StoreError if one of them is refused, and
        LeaseHeld if `supervisor` is given and has a lease again.
        """
        settlements = self._decided.get(incarnation) or decide(self._locks.held_by(incarnation))
        self._decided[incarnation] = settlements
        try:
            count = self._locks.settle_dead(incarnation, settlements, now, worker=name, supervisor=supervisor)
        except LeaseHeld:
            del self._decided[incarnation]
            raise
        del self._decided[incarnation]
        self._counter.settled(settlements, count, now, worker=name)  # first: killed before, it would count too few
        settled_notice.notify()
        return count, settlements
