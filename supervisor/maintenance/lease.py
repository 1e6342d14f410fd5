"""The lease without which a supervisor may not claim."""

from __future__ import annotations

from collections.abc import Callable

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreError
from supervisor.store.base import Registry, SupervisorRecord
from supervisor.system.published import read_published
from supervisor.system.scoreboard import ClaimGate, boot_time
from supervisor.telemetry import events


def taken_elsewhere(registry: Registry) -> set[str]:
    """The types that pools of supervisors with a lease take, as they have published."""
    posted = [read_published(lease.posted) for lease in registry.leases().values() if lease.left > 0]
    pools = [pool for board in posted for pool in board.status.get("pools", {}).values()]
    return {str(type_) for pool in pools for type_ in pool.get("types", ())}


_MARGIN = 1.0  # seconds for a claim to reach the server, and for clocks that differ in speed
_EXACT = 0.5  # seconds: an answer that takes longer does not tell the time


class LeaseRenewal(Duty):
    """Renews it three times while it lasts, and publishes what other hosts should know, if that has changed.

    A lease of `seconds` is counted from before it was asked for, so it ends here before it ends for others. When it may
    have ended, others may have settled the jobs of some workers and removed their rows: the workers register again.
    """

    name = "lease"
    needs = Needs.NOTHING  # it is what tells whether the database is there
    quiet = True

    def __init__(
        self, registry: Registry, record: SupervisorRecord, gate: ClaimGate, seconds: float, publish: Callable[[], str]
    ) -> None:
        self.every = seconds / 3
        self._registry = registry
        self._record = record
        self._gate = gate
        self._seconds = seconds
        self._publish = publish
        self._published = ""
        self._renewed_at = 0.0
        self._log = events(process="maintainer")

    def run(self, now: float) -> Result:
        opened = self._gate.lapsed
        board = self._publish()
        began, at = self._renew(board)
        again = opened or at is None
        if at is None:
            self._registry.register(self._record)
            began, at = self._renew(board)
            if at is None:
                raise StoreError("the supervisor is not in the registry, and cannot be registered")
        self._published = board
        self._renewed_at = ended = boot_time()
        clock = at - (began + ended) / 2
        if ended - began > _EXACT and not opened:
            clock = self._gate.now() - ended
        if opened and self._gate.generation:
            self._log.warning("lease_regained", hint="its jobs may run on other hosts now: late results are refused")
        self._gate.renewed(began + self._seconds - _MARGIN, clock, again=again)
        return Result(news=opened)

    def _renew(self, board: str) -> tuple[float, float | None]:
        began = boot_time()
        return began, self._registry.renew(self._record.id, None if board == self._published else board)

    def overdue(self) -> bool:
        """Whether other duties have kept it waiting for long."""
        return boot_time() - self._renewed_at > self._seconds / 2
