"""What the maintainer counts and logs: runs settled for dead workers, reclaimed locks, and busy errors."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.history import finished_run
from supervisor.domain.settlement import Settlement
from supervisor.system.counters import Row
from supervisor.telemetry import events
from supervisor.telemetry.job_events import JobEvents


class Counter:
    """Adds to the maintainer's row what was committed, so nothing counts twice."""

    def __init__(self, row: Row | None = None) -> None:
        self._row = row or Row()
        self._events = JobEvents(events(process="maintainer"))

    def settled(self, settlements: Sequence[Settlement], count: int, now: float, *, worker: str | None = None) -> None:
        """`count` of these, of a dead `worker`, were settled. If it was not all of them, nobody knows which, and none
        is counted.
        """
        for settlement in settlements if count >= len(settlements) else ():  # before logs: those may be written slowly
            run = finished_run(settlement, now)
            if run is not None:
                self._row.ran(run.type, run.run, run.wait, failed=run.failed)
        fields = {} if worker is None else {"worker": worker}
        for settlement in settlements:
            self._events.settled(settlement, **fields)

    def reclaimed(self, settlements: Sequence[Settlement], now: float) -> None:
        """An expired lock was reclaimed."""
        self._row.reclaimed(1)
        self.settled(settlements, len(settlements), now)

    def tell_rest(self) -> None:
        """Log how many failures were not logged one by one. To be called every second."""
        self._events.tell_rest()

    def store_was_busy(self) -> None:
        self._row.busy()
