"""Count what a worker has settled, once for all jobs of a round, so that the cost per job is almost nothing."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from operator import itemgetter, sub
from typing import Any

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.domain.history import LONGEST_WAIT, finished_run, waiting_time
from supervisor.domain.settlement import Settlement
from supervisor.system.counters import BOUNDS, Row
from supervisor.worker.recorder import WORTH

_started_of = itemgetter(Settlement._fields.index("started_at"))
_usage_of = itemgetter(Settlement._fields.index("usage"))


QUICK = 32  # quick jobs, claimed one at a time, that are counted together


class Counter:
    """Adds to the worker's row what was committed, so nothing counts twice. When a worker is killed, the jobs that it
    has committed and not yet counted are missing: one round of claims, or QUICK single ones. `types` are its pool's.

    Runs that are too short for a row of their own are not timed individually: each lasts until the next one starts,
    which within a round is a few microseconds later.
    """

    def __init__(self, row: Row, types: Sequence[str]) -> None:
        self._row = row
        self._only = types[0] if len(types) == 1 else None
        self._quick: deque[tuple[float, float, float]] = deque()  # (due, started, ended) of successful runs

    def settled(self, settlements: list[Settlement], lost: Sequence[int], until: float, more: bool = False) -> None:
        """These were committed, except the `lost`. `until` is the Unix time at which the last of their runs ended;
        `more` means that others follow at once.
        """
        if more and len(settlements) == 1 and not lost:
            # The throughput with prefetch = 1 depends on this.
            settlement, quick = settlements[0], self._quick
            started = settlement.started_at
            plain = settlement.usage is None and settlement.failure is None and self._only is not None
            if plain and started is not None and len(quick) < QUICK:
                quick.append((settlement.claim.due_at, started, until))  # type: ignore[union-attr]
                return
        self.flush()
        if lost:
            settlements = [settlement for settlement in settlements if settlement.job_id not in lost]
        if self._only is None or not self._count_plain(self._only, settlements, until):
            self._count_each(settlements, until)

    def flush(self) -> None:
        """Count what was kept for later. Any thread may call this."""
        kept = []
        while self._quick:
            try:
                kept.append(self._quick.popleft())
            except IndexError:  # the other thread was faster
                break
        if not kept or self._only is None:
            return
        runs = sorted([over - started for _, started, over in kept])
        waits = sorted([started - due for due, started, _ in kept])
        if runs[0] < 0.0 or runs[-1] > WORTH or waits[0] < 0.0 or waits[-1] > LONGEST_WAIT:
            runs = sorted(min(max(0.0, run), WORTH) for run in runs)
            waits = sorted(waiting_time(due, started) for due, started, _ in kept)
        self._row.ran_all(self._only, runs, waits)

    def store_failed(self, error: StoreError) -> None:
        if isinstance(error, StoreBusy):
            self._row.busy()

    def _count_plain(self, type_: str, settlements: list[Settlement], until: float) -> bool:
        """Count quick successes, of which there are thousands a second, as whole lists. False: not all are."""
        if not settlements or any(map(_usage_of, settlements)):
            return False
        starts: list[Any] = list(map(_started_of, settlements))
        try:
            runs = list(map(sub, [*starts[1:], until], starts))
        except TypeError:  # some were not run
            return False
        waits = sorted(map(sub, starts, [s.claim.due_at for s in settlements]))  # type: ignore[union-attr]
        longest = max(runs)
        if min(runs) <= 0.0 or longest > WORTH or waits[0] < 0.0 or waits[-1] > LONGEST_WAIT:
            return False
        if longest > BOUNDS[0]:  # else they are all in one bucket
            runs.sort()
        self._row.ran_all(type_, runs, waits)
        return True

    def _count_each(self, settlements: list[Settlement], until: float) -> None:
        later: float | None = None
        for settlement in reversed(settlements):
            started, limit = settlement.started_at, until
            if started is not None:
                if later is not None and later != started:  # the jobs of a batch start together
                    until = later
                later, limit = started, min(until, started + WORTH)
            run = finished_run(settlement, limit)
            if run is not None:
                self._row.ran(run.type, run.run, run.wait, failed=run.failed)
