"""Log what happened to jobs, once their settlements are committed."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic
from typing import Any

from supervisor.domain.job import Status
from supervisor.domain.retry import RetryPolicy
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange

MOST_FAILURES = 10  # logged one by one per second; the rest are counted
_SECOND = 1.0
_LONGEST = 300  # characters of an error's message
_FAILED = (Status.PENDING, Status.FAILED, Status.QUARANTINED)  # the results of a failed attempt; not: cancelled


class Telling:
    """Called after each commit. `retry` is the pool's policy; `log` names pool and worker."""

    def __init__(self, retry: RetryPolicy, log: Any) -> None:
        self._retry = retry
        self._log = log
        self._since = 0.0  # when the current second started
        self._logged = self._unlogged = 0

    def __call__(self, settlements: Sequence[Settlement], exchange: Exchange) -> None:
        for job in exchange.lost:
            self._log.warning("claim_lost", job=job, result="discarded")
        for job, reason in exchange.refused:  # rows that the database does not allow to be claimed or settled
            self._log.warning("row_refused", job=job, reason=reason, result="quarantined")
        for settlement in settlements:
            if settlement.failure is None or settlement.status not in _FAILED:
                continue
            if settlement.job_id not in exchange.lost:
                self._failure(settlement)
        if self._unlogged and monotonic() - self._since >= _SECOND:
            self.rest()

    def rest(self) -> None:
        """Log how many failures were not logged one by one."""
        if self._unlogged:
            self._log.warning("more_jobs_failed", count=self._unlogged, hint="supervisor jobs list --status failed")
            self._unlogged = 0

    def _failure(self, settlement: Settlement) -> None:
        now = monotonic()
        if now - self._since >= _SECOND:
            self.rest()
            self._since, self._logged = now, 0
        if self._logged >= MOST_FAILURES:
            self._unlogged += 1
            return
        self._logged += 1
        claim, failure = settlement.claim, settlement.failure
        assert claim is not None
        assert failure is not None
        again = settlement.status is Status.PENDING
        log = self._log.warning if again else self._log.error
        log(
            "job_failed",
            job=claim.job_id,
            type=claim.type,
            attempt=claim.attempt,
            max_attempts=self._retry.attempts_for(claim.max_attempts),
            kind=failure.kind,
            error=_one_line(failure.message),
            **({"retry_in": round(settlement.delay, 3)} if again else {}),  # seconds
        )


def _one_line(message: str) -> str:
    """The first line that is not empty, shortened."""
    first = next((line for line in message.splitlines() if line.strip()), "").strip()
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"
