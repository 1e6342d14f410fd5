"""The maintainer's first duty: register the supervisor, get its lease, and recover dead ones. No worker exists before
it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.maintenance.recovery import Recovery
from supervisor.store.base import Registry, SupervisorRecord
from supervisor.system.channel import Message


class StartUp(Duty):
    """What cannot be recovered now, for example a row that cannot be written, does not prevent the start."""

    name = "start-up"
    every = 60.0
    needs = Needs.NOTHING  # it finds out itself whether the database is there

    def __init__(
        self,
        registry: Registry,
        record: SupervisorRecord,
        recovery: Recovery,
        send: Callable[[Message], None],
        before: Sequence[Duty] = (),
    ) -> None:
        """`before` are duties that run first; `now` may be another time after them."""
        self._registry = registry
        self._record = record
        self._recovery = recovery
        self._send = send
        self._before = list(before)
        self._found = dict.fromkeys(("supervisors", "jobs", "quarantined"), 0)
        self.done = False

    def run(self, now: float) -> Result:
        self._registry.register(self._record)
        if self._before:
            for duty in self._before:
                duty.run(now)
            self._before = []
            return Result(more=True)
        recovered = self._recovery.run(now)
        for name in self._found:
            self._found[name] += getattr(recovered, name)
        if not recovered.more:
            self._send({"recovered": self._found})
            self.done = True
        return Result(more=recovered.more)
