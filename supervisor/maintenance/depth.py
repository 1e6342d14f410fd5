"""Measures the backlog of each pool, for scaling and for display."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Result
from supervisor.maintenance.items import Items
from supervisor.maintenance.messages import chunks
from supervisor.store.base import Backlog, Depth, JobSelector
from supervisor.system.channel import Message

COUNT_LIMIT = 10_000  # due jobs counted for a pool: more makes no difference to any decision
_LATE = 0.0005  # seconds after the time of a delayed job, so that it is due by then
_POOLS = 200  # in one message


@dataclass(frozen=True, slots=True)
class Measured(Result):
    depths: Mapping[str, Depth]
    changed: bool = False

    @property
    def news(self) -> bool:
        """A delayed job becomes due without a commit."""
        return self.changed and any(depth.due for depth in self.depths.values())


class DepthGauge(Duty):
    """Measures after changes, while anything waits, and when the next delayed job becomes due. While `claiming` says
    that nothing may be claimed, nothing counts as due: no worker need be started for it. `admitted` is what may be.
    """

    name = "depths"
    rest = 0.1
    quiet = True

    def __init__(
        self,
        backlog: Backlog,
        pools: Mapping[str, JobSelector],
        send: Callable[[Message], None],
        claiming: Callable[[], bool] = lambda: True,
        admitted: Callable[[JobSelector], JobSelector] = lambda wanted: wanted,
    ) -> None:
        self._backlog = backlog
        self._pools = pools
        self._send = send
        self._claiming = claiming
        self._admitted = admitted
        self._depths: dict[str, Depth] = {}
        self._looked: dict[str, float] = {}  # when each was measured, in monotonic seconds
        self._failing: Items[str] = Items("pool")
        self.every = 1.0

    def next_at(self, now: float) -> float | None:
        times = [depth.next_due + _LATE for depth in self._depths.values() if depth.next_due is not None]
        again = self._failing.next_try(now)
        return min([*times, *([] if again is None else [again])], default=None)

    def run(self, now: float) -> Measured:
        measured = dict(self._depths)
        for name, wanted in self._pools.items():
            if self._failing.ready(name):
                with self._failing.attempt(name):
                    looked = time.monotonic()  # taken before: jobs claimed during the count may be counted as due
                    measured[name] = self._depth(wanted, now) if self._claiming() else Depth()
                    self._looked[name] = looked
        changed = measured != self._depths
        # A backlog is sent again even if it is unchanged: the older a measurement, the less it counts.
        told = {name: depth for name, depth in measured.items() if depth.due or depth != self._depths.get(name)}
        for part in chunks(told.items(), _POOLS):
            self._send({"depths": {name: _told(depth, now, self._looked[name]) for name, depth in part}})
        self._depths = measured
        # While some jobs are due, others become due without a timer of their own.
        self.every = 1.0 if any(depth.due for depth in measured.values()) else 60.0
        return Measured(measured, changed, problem=self._failing.problem)

    def _depth(self, wanted: JobSelector, now: float) -> Depth:
        return self._backlog.depth(self._admitted(wanted), now, COUNT_LIMIT)


def _told(depth: Depth, now: float, looked: float) -> dict[str, float]:
    age = 0.0 if depth.oldest is None else max(0.0, now - depth.oldest)
    return {"due": depth.due, "oldest_age": age, "at": looked}
