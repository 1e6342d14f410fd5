"""Jobs that are held until they may run: those whose time comes, and what no trigger has seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from supervisor.domain.duty import Duty, Needs, Result, moved
from supervisor.domain.limits import Limits
from supervisor.store.base import Gates
from supervisor.telemetry import events

_SWEEP = 60.0  # seconds between two looks at every gate
_BOUND = 0.5  # seconds for one run, while other duties wait
_AGAIN = 0.02  # seconds


class OpenGates(Duty):
    """The first run lets the configured limits be those of these types."""

    name = "gates"
    every = 60.0
    rest = 0.02
    needs = Needs.WRITING
    quiet = True

    def __init__(self, gates: Gates, limits: Mapping[str, Limits], types: Sequence[str]) -> None:
        self._gates, self._limits, self._types = gates, limits, types
        self._configured = False
        self._swept_at = 0.0
        self._next: float | None = None

    def next_at(self, now: float) -> float | None:
        return self._next

    def run(self, now: float) -> Result:
        """`now` is Unix seconds."""
        if not self._configured:
            if changed := self._gates.configure(self._limits, self._types, now):
                events(process="maintainer").info("limits_changed", types=changed)
            self._configured = True
        admitted, (due, expires) = 0, self._gates.next_due()
        if min(due, expires) <= now:
            admitted = self._gates.admit_due(now) + self._gates.cancel_expired(now)
            due, expires = self._gates.next_due()
        self._next = min(due, expires)
        if self._next <= now:  # there are more, or another transaction has locked it
            self._next = now + _AGAIN
        more = False
        if abs(now - self._swept_at) >= _SWEEP:
            passed, more = self._gates.sweep(now, _BOUND)
            admitted += passed
            self._swept_at = self._swept_at if more else now
        return moved(admitted, more=more)
