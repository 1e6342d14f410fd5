"""Waits for descriptors and for times: what a loop sleeps on."""

from __future__ import annotations

import selectors
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field


class Reactor:
    """A selector that allows unwatching twice: a dead process's descriptors end in any order."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._readable: frozenset[int] = frozenset()

    def watch(self, descriptor: int, callback: Callable[[], None] | None = None) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def unwatch(self, descriptor: int) -> None:
        if descriptor >= 0 and descriptor in self._selector.get_map():
            self._selector.unregister(descriptor)

    def wait(self, seconds: float) -> None:
        """Sleep until a descriptor is readable, for at most this many seconds."""
        events = self._selector.select(max(0.0, seconds))
        self._readable = frozenset(key.fd for key, _ in events)
        for key, _ in events:
            # An earlier callback may have unwatched it.
            if key.data is not None and key.fd in self._selector.get_map():
                key.data()

    def is_readable(self, descriptor: int) -> bool:
        """Whether the last wait found it so: reading it otherwise would cost a system call that finds nothing."""
        return descriptor in self._readable


GAP = 0.02  # minimum seconds between two passes for the same source

Source = Callable[[], Iterable[float | None]]
"""The times that a source waits for, in monotonic seconds; None for none."""


@dataclass(slots=True)
class _Timer:
    moments: Source
    rung: set[float] = field(default_factory=set)  # past times for which the loop was woken
    rung_at: float = float("-inf")

    def sleep(self, now: float) -> float:
        moments = {at for at in self.moments() if at is not None}
        self.rung &= moments
        passed = {at for at in moments if at <= now} - self.rung
        ahead = min((at - now for at in moments if at > now), default=float("inf"))
        if not passed:
            return ahead
        if now < self.rung_at + GAP:
            return min(ahead, self.rung_at + GAP - now)
        self.rung |= passed
        self.rung_at = now
        return 0.0


class Timers:
    """The only place that computes the loop's sleep: everything that waits for a time is a source here.

    A time wakes the loop while it is in the future, and once when it has passed. If its source does not change it, it
    has no further effect; and a source that names one past time after another gets a pass every GAP seconds. So a
    forgotten time cannot make the loop spin.
    """

    def __init__(self) -> None:
        self._timers: dict[str, _Timer] = {}

    def add(self, name: str, moments: Source) -> None:
        self._timers[name] = _Timer(moments)

    def sleep(self, now: float) -> float:
        """Seconds until the next pass; infinite if no source waits for a time."""
        return min((timer.sleep(now) for timer in self._timers.values()), default=float("inf"))
