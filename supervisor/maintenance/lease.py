"""The lease without which a supervisor may not claim, and what operators have set for its host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.errors import StoreError
from supervisor.store.base import Controls, Registry, SupervisorRecord
from supervisor.system.claim_gate import ClaimGate, boot_time
from supervisor.telemetry import events

_MARGIN = 1.0  # seconds for a claim to reach the server, and for clocks that differ in speed
_EXACT = 0.5  # seconds: an answer that takes longer does not tell the time


@dataclass(frozen=True, slots=True)
class Changed(Result):
    """`opened`: jobs may be claimed that could not before."""

    opened: bool = False

    @property
    def news(self) -> bool:
        return self.opened


class LeaseRenewal(Duty):
    """Renews it three times while it lasts, and posts what other hosts should know, if that has changed.

    A lease of `seconds` is counted from before it was asked for, so it ends here before it ends for others. When it may
    have ended, others may have settled the jobs of some workers and removed their rows: the workers register again.
    """

    name = "lease"
    needs = Needs.NOTHING  # it is what tells whether the database is there
    quiet = True

    def __init__(
        self, registry: Registry, record: SupervisorRecord, gate: ClaimGate, seconds: float, post: Callable[[], str]
    ) -> None:
        self.every = seconds / 3
        self._registry = registry
        self._record = record
        self._gate = gate
        self._seconds = seconds
        self._post = post
        self._posted = ""
        self._renewed_at = 0.0
        self._log = events(process="maintainer")

    def run(self, now: float) -> Changed:
        opened = self._gate.lapsed
        post = self._post()
        began, at = self._renew(post)
        again = opened or at is None
        if at is None:
            self._registry.register(self._record)
            began, at = self._renew(post)
            if at is None:
                raise StoreError("the supervisor is not in the registry, and cannot be registered")
        self._posted = post
        self._renewed_at = ended = boot_time()
        clock = at - (began + ended) / 2
        if ended - began > _EXACT and not opened:
            clock = self._gate.now() - ended
        if opened and self._gate.generation:
            self._log.warning("lease_regained", hint="its jobs may run on other hosts now: late results are refused")
        self._gate.renewed(began + self._seconds - _MARGIN, clock, again=again)
        return Changed(opened=opened)

    def _renew(self, post: str) -> tuple[float, float | None]:
        began = boot_time()
        return began, self._registry.renew(self._record.id, None if post == self._posted else post)

    def overdue(self) -> bool:
        """Whether other duties have kept it waiting for long."""
        return boot_time() - self._renewed_at > self._seconds / 2


class HostWatch(Duty):
    """Passes on whether operators have drained this host, so that its workers claim nothing, and which types they have
    paused on it.
    """

    name = "host"
    every = 60.0  # seconds, when nothing changes
    rest = 0.2
    quiet = True

    def __init__(self, controls: Controls, host: str, gate: ClaimGate) -> None:
        self._controls = controls
        self._host = host
        self._gate = gate
        self._paused: frozenset[str] = frozenset()
        self._log = events(process="maintainer")

    def run(self, now: float) -> Changed:
        controls = self._controls.current()
        drained, before = self._host in controls.drained, self._gate.drained
        if drained != before:
            self._gate.drain(drained)
            self._log.info("drained" if drained else "undrained", host=self._host)
        paused = controls.paused_on(self._host)
        resumed = bool(self._paused - paused)
        if paused != self._paused:
            self._log.info("paused_on_host", host=self._host, types=sorted(paused))
        self._paused = paused
        self._gate.pause(paused)  # the first time too: another maintainer may have left other types there
        return Changed(opened=(before and not drained) or resumed)
