"""Pass on what people want: paused types, pool sizes, reloads, cancels; and say when a burst is over."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from supervisor.maintenance.roster import Roster
from supervisor.store.base import Chores, Controls, Wanted
from supervisor.system.channel import Message

_BURST_PAUSE = 0.1  # seconds between two looks at a burst
_SETTLE = 0.2  # seconds between two looks while the database is changing


@dataclass(frozen=True, slots=True)
class Steered:
    told: bool = False
    cancels: int = 0


class Steering:
    """Looks when something was committed, at most a few times a second, and tells the supervisor of news."""

    every = 60.0  # seconds, when nothing tells it to

    def __init__(self, chores: Chores, types: tuple[str, ...], send: Callable[[Message], None]) -> None:
        self._chores = chores
        self._types = types
        self._send = send
        self._dirty = True
        self.settled_at = 0.0  # the earliest time for another look, in monotonic seconds
        self._controls: Controls | None = None
        self._unhandled: list[str] = []
        self._cancels: list[tuple[int, int, str]] = []

    def changed(self) -> None:
        self._dirty = True

    def run_once(self, now: float) -> Steered:
        if not self._dirty:
            return Steered()
        self._dirty = False
        self.settled_at = time.monotonic() + _SETTLE
        return Steered(self._tell_controls() | self._tell_unhandled(), self._tell_cancels())

    def _tell_controls(self) -> bool:
        controls = self._chores.controls()
        if controls == self._controls:
            return False
        self._controls = controls
        self._send(
            {
                "controls": {
                    "paused": sorted(controls.paused),
                    "sizes": dict(controls.sizes),
                    "reloads": controls.reloads,
                }
            }
        )
        return True

    def _tell_unhandled(self) -> bool:
        types = self._chores.unhandled(self._types)
        if types == self._unhandled:
            return False
        self._unhandled = types
        self._send({"unhandled": types})
        return True

    def _tell_cancels(self) -> int:
        cancels = self._chores.cancels()
        if cancels and cancels != self._cancels:
            self._send({"cancels": [list(cancel) for cancel in cancels]})
        self._cancels = cancels
        return len(cancels)


@dataclass(frozen=True, slots=True)
class BurstState:
    over: bool
    pending: int
    failed: int


class BurstWatch:
    """Tells how far a burst is, and when nothing is due, running or delayed for another attempt."""

    def __init__(
        self,
        chores: Chores,
        roster: Roster,
        pools: tuple[Wanted, ...],
        own: str,
        since: float,
        send: Callable[[Message], None],
    ) -> None:
        self._chores = chores
        self._roster = roster
        self._pools = pools
        self._types = tuple(sorted({t for wanted in pools for t in wanted.types}))
        self._own = own
        self._since = since
        self._send = send
        self.every = _BURST_PAUSE

    def run_once(self, now: float) -> BurstState:
        began = time.monotonic()
        rest, done = self._roster.at_rest()
        over = rest and not any(self._chores.unfinished(wanted, now) for wanted in self._pools)
        over = over and not self._chores.holding(self._own)
        # Nobody may have claimed between the two looks.
        over = over and self._roster.at_rest() == (True, done)
        pending, failed = self._chores.progress_of(self._types, self._since)
        self._send({"burst": {"over": over, "pending": pending, "failed": failed}})
        # Counting a long queue takes a while; it must not take time from the workers.
        self.every = max(_BURST_PAUSE, 20 * (time.monotonic() - began))
        return BurstState(over, pending, failed)
