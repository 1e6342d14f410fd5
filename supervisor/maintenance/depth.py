"""Measure how much waits for each pool, for scaling and for people."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from supervisor.store.base import Chores, Depth, Wanted

COUNT_LIMIT = 10_000  # due jobs counted a pool: more makes no difference to any decision
SETTLE = 0.1  # seconds between two measurements while the queue is changing


@dataclass(frozen=True, slots=True)
class Measured:
    depths: Mapping[str, Depth]


class DepthGauge:
    """Measures when told that something changed, but not more often than every SETTLE seconds."""

    every = 1.0  # seconds, when nothing tells it to

    def __init__(
        self, chores: Chores, pools: Mapping[str, Wanted], report: Callable[[Mapping[str, Depth]], None]
    ) -> None:
        self._chores = chores
        self._pools = pools
        self._report = report
        self._depths: dict[str, Depth] = {}
        self._dirty = True
        self._measured_at = 0.0

    def changed(self) -> None:
        self._dirty = True

    @property
    def next_due(self) -> float | None:
        """When the next delayed job becomes due, in Unix seconds."""
        return min((d.next_due for d in self._depths.values() if d.next_due is not None), default=None)

    @property
    def settled_at(self) -> float:
        """The earliest time for another measurement, in monotonic seconds."""
        return self._measured_at + SETTLE

    def run_once(self, now: float) -> Measured:
        """Measure if something may have changed. `now` is Unix seconds."""
        waiting = any(depth.due for depth in self._depths.values())
        passed = self.next_due is not None and self.next_due <= now
        if self._dirty or waiting or passed:
            self._dirty = False
            self._measured_at = time.monotonic()
            measured = {name: self._chores.depth(wanted, now, COUNT_LIMIT) for name, wanted in self._pools.items()}
            if measured != self._depths:
                self._depths = measured
                self._report(measured)
        return Measured(self._depths)
