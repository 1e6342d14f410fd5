"""Wakes workers for the jobs of requests, which need not wait until the maintainer notices the commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from supervisor.domain.job import NewJob, high_enough
from supervisor.maintenance.waking import SlotReader, wake_workers
from supervisor.store.base import JobSelector
from supervisor.system.scoreboard import Scoreboard


class Waking:
    """`wakes` maps a pool to the eventfd on which its idle workers sleep, `takes` to the jobs that it takes. Of several
    pools that take a job, the first of `takes` with an idle worker is woken.

    This is only for speed: the maintainer wakes workers for every job, and knows what is not considered here, such as
    capabilities. A worker that is woken in vain finds no job and sleeps again.
    """

    def __init__(self, board: Scoreboard, wakes: Mapping[str, int], takes: Mapping[str, JobSelector]) -> None:
        self._slots = SlotReader(board)
        self._wakes = wakes
        self._pools: dict[str, list[tuple[str, int | None]]] = {}  # by type, each with its lowest priority
        for pool, taken in takes.items():
            if pool in wakes:
                for type_ in taken.types:
                    self._pools.setdefault(type_, []).append((pool, taken.min_priority))

    def wake(self, jobs: Iterable[NewJob]) -> None:
        """After their commit."""
        idle = self._slots.idle()
        for job in jobs:
            pools = self._pools.get(job.type, ())
            takes = (name for name, lowest in pools if high_enough(job.priority, lowest))
            pool = next((name for name in takes if idle[name] > 0), None)
            if pool is not None:
                idle[pool] -= 1
                wake_workers(self._wakes[pool], 1)
