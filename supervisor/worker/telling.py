"""Log what happened to jobs, once their settlements are committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from supervisor.domain.policy import JobPolicy
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange
from supervisor.telemetry.job_events import JobEvents


class Telling:
    """Called after each commit. `policy` is the pool's; `log` names pool and worker."""

    def __init__(self, policy: JobPolicy, log: Any) -> None:
        self._policy = policy
        self._log = log
        self._events = JobEvents(log)

    def __call__(self, settlements: Sequence[Settlement], exchange: Exchange) -> None:
        for job in exchange.lost:
            self._log.warning("claim_lost", job=job, result="discarded")
        for job, reason in exchange.refused:  # rows that the database does not allow to be claimed or settled
            self._log.warning("row_refused", job=job, reason=reason, result="quarantined")
        for settlement in settlements:
            claim = settlement.claim
            if settlement.failure is None or claim is None or claim.job_id in exchange.lost:
                continue
            self._events.settled(
                settlement, max_attempts=self._policy.retry_of(claim.type).attempts_for(claim.max_attempts)
            )
        self._events.tell_rest()

    def rest(self) -> None:
        """Log how many failures were not logged one by one."""
        self._events.tell_rest(now=True)
