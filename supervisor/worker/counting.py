"""Count what a worker has settled, once a hand of jobs, at next to no cost for each."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter, sub
from typing import Any

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.settlement import Settlement
from supervisor.domain.tally import LONGEST_WAIT, ended
from supervisor.system.tallies import Row
from supervisor.worker.recorder import WORTH

_started_of = itemgetter(Settlement._fields.index("started_at"))
_usage_of = itemgetter(Settlement._fields.index("usage"))


class Counter:
    """Adds to the worker's row what was committed, so nothing counts twice; what a worker has committed and not
    counted when it is killed, a hand of jobs, is missing there. `types` are its pool's.

    Runs that are not worth a row of their own are not timed either: one lasts until the next one starts, which
    between two jobs in hand is a few microseconds later.
    """

    def __init__(self, row: Row, types: Sequence[str]) -> None:
        self._row = row
        self._only = types[0] if len(types) == 1 else None

    def settled(self, settlements: list[Settlement], lost: Sequence[int], until: float) -> None:
        """They were committed, apart from the `lost`. `until` is the Unix time at which the last of their runs
        was over.
        """
        if lost:
            settlements = [settlement for settlement in settlements if settlement.job_id not in lost]
        if len(settlements) == 1:  # prefetch = 1 lives by this
            self._count_one(settlements[0], until)
        elif self._only is None or not self._count_plain(self._only, settlements, until):
            self._count_each(settlements, until)

    def store_failed(self, error: StoreError) -> None:
        if isinstance(error, StoreBusy):
            self._row.busy()

    def _count_one(self, settlement: Settlement, until: float) -> None:
        started, claim = settlement.started_at, settlement.claim
        if settlement.usage is None and started is not None and claim is not None:
            run, wait = until - started, started - claim.due_at
            if 0.0 <= run <= WORTH and 0.0 <= wait <= LONGEST_WAIT:
                self._row.ran(claim.type, run, wait)
                return
        self._count_each([settlement], until)

    def _count_plain(self, type_: str, settlements: list[Settlement], until: float) -> bool:
        """Count quick successes, of which there are thousands a second, by whole lists. False: not all are."""
        if list(map(_usage_of, settlements)).count(None) < len(settlements):
            return False
        starts: list[Any] = list(map(_started_of, settlements))
        try:
            runs = sorted(map(sub, [*starts[1:], until], starts))
        except TypeError:  # some were not run at all
            return False
        waits = sorted(map(sub, starts, [s.claim.due_at for s in settlements]))  # type: ignore[union-attr]
        if runs[0] <= 0.0 or runs[-1] > WORTH or waits[0] < 0.0 or waits[-1] > LONGEST_WAIT:
            return False
        self._row.ran_all(type_, runs, waits)
        return True

    def _count_each(self, settlements: list[Settlement], until: float) -> None:
        later: float | None = None
        for settlement in reversed(settlements):
            started, limit = settlement.started_at, until
            if started is not None:
                if later is not None and later != started:  # those of a batch start together
                    until = later
                later, limit = started, min(until, started + WORTH)
            run = ended(settlement, limit)
            if run is not None:
                self._row.ran(run.type, run.run, run.wait, failed=run.failed)
