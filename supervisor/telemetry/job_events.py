"""The log's events about failed runs: `job_failed`, `job_given_up` and `job_quarantined`."""

from __future__ import annotations

from collections import Counter
from time import monotonic
from typing import Any

from supervisor.domain.job import Status
from supervisor.domain.settlement import Settlement

MOST_FAILURES = 10  # of each event logged one by one per second; the rest are counted
_SECOND = 1.0
_LONGEST = 300  # characters of an error's message
_EVENTS = {Status.PENDING: "job_failed", Status.FAILED: "job_given_up", Status.QUARANTINED: "job_quarantined"}


class JobEvents:
    """Called with what was committed. `log` names the process."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._since = 0.0  # when the current second started
        self._logged: Counter[str] = Counter()
        self._unlogged = 0

    def settled(self, settlement: Settlement, **fields: object) -> None:
        """Log it if the run failed; a run that was cancelled or released did not. The `fields` are added."""
        claim, failure, event = settlement.claim, settlement.failure, _EVENTS.get(settlement.status)
        if claim is None or failure is None or event is None:
            return
        if monotonic() - self._since >= _SECOND:
            self.tell_rest(now=True)
            self._since = monotonic()
            self._logged.clear()
        if self._logged[event] >= MOST_FAILURES:
            self._unlogged += 1
            return
        self._logged[event] += 1
        again = settlement.status is Status.PENDING
        log = self._log.warning if again else self._log.error
        log(
            event,
            job=claim.job_id,
            type=claim.type,
            attempt=claim.attempt,
            kind=failure.kind,
            error=_one_line(failure.message),
            **({"retry_in": round(settlement.delay, 3)} if again else {}),  # seconds
            **fields,
        )

    def tell_rest(self, *, now: bool = False) -> None:
        """Log how many failures were not logged one by one: once a second, or `now`. To be called now and then."""
        if self._unlogged and (now or monotonic() - self._since >= _SECOND):
            self._log.warning("more_jobs_failed", count=self._unlogged, hint="supervisor jobs list --status failed")
            self._unlogged = 0


def _one_line(message: str) -> str:
    """The first line that is not empty, shortened."""
    first = next((line for line in message.splitlines() if line.strip()), "").strip()
    return first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"
