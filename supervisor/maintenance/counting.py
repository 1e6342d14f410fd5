"""What the maintainer counts: runs settled for dead workers, reclaimed locks, and busy errors."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.counting import ended
from supervisor.domain.settlement import Settlement
from supervisor.system.counters import Row


class Counter:
    """Adds to the maintainer's row what was committed, so nothing counts twice."""

    def __init__(self, row: Row | None = None) -> None:
        self._row = row or Row()

    def settled(self, settlements: Sequence[Settlement], count: int, now: float) -> None:
        """`count` of these were settled. If it was not all of them, nobody knows which, and none is counted."""
        if count < len(settlements):
            return
        for settlement in settlements:
            run = ended(settlement, now)
            if run is not None:
                self._row.ran(run.type, run.run, run.wait, failed=run.failed)

    def reclaimed(self, settlements: Sequence[Settlement], now: float) -> None:
        """An expired lock was reclaimed."""
        self._row.reclaimed(1)
        self.settled(settlements, len(settlements), now)

    def store_was_busy(self) -> None:
        self._row.busy()
