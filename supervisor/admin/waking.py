"""Wakes workers for the jobs of requests, which need not wait until the maintainer notices the commit."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from supervisor.domain.job import NewJob
from supervisor.maintenance.slot_reader import SlotReader
from supervisor.system.scoreboard import Scoreboard


class Waking:
    """`wakes` maps a pool to the eventfd on which its idle workers sleep, `types` to the types that it takes.

    This is only for speed: the maintainer wakes workers for every job, and knows what is not considered here, such as
    capabilities. A worker that is woken in vain finds no job and sleeps again.
    """

    def __init__(self, board: Scoreboard, wakes: Mapping[str, int], types: Mapping[str, Iterable[str]]) -> None:
        self._slots = SlotReader(board)
        self._wakes = wakes
        self._pools: dict[str, list[str]] = {}
        for pool in wakes.keys() & types.keys():
            for type_ in types[pool]:
                self._pools.setdefault(type_, []).append(pool)

    def wake(self, jobs: Iterable[NewJob]) -> None:
        """After their commit."""
        idle = self._slots.idle()
        for job in jobs:
            pool = next(
                (name for name in self._pools.get(job.type, ()) if idle[name] > 0 and name in self._wakes), None
            )
            if pool is not None:
                idle[pool] -= 1
                os.eventfd_write(self._wakes[pool], 1)
