"""Looks after jobs that wait until a time that the clock has been set back from."""

from __future__ import annotations

from math import inf

from supervisor.domain.duty import Duty, Moved, Needs
from supervisor.domain.schedule import GRACE
from supervisor.store.base import Backlog
from supervisor.telemetry import events


class ClockWatch(Duty):
    """At the start, and after the clock was set back, the delays of retries count from now if they would otherwise
    count from a later time; what was due when it was enqueued is due again.
    """

    name = "delays after a change of the clock"
    every = GRACE  # seconds: no larger step back remains unseen
    needs = Needs.WRITING

    def __init__(self, backlog: Backlog) -> None:
        self._backlog = backlog
        self._looked_at = inf  # Unix seconds
        self._log = events(process="maintainer")

    def next_at(self, now: float) -> float | None:
        return now if now < self._looked_at else None

    def run(self, now: float) -> Moved:
        if now < self._looked_at:
            jobs = self._backlog.bring_forward(now, now + GRACE)
            if jobs:
                self._log.warning("delays_counted_again", jobs=jobs)
                return Moved(jobs, more=True)  # there may be others
        self._looked_at = now
        return Moved()
