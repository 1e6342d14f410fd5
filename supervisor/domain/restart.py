"""When a worker that died is replaced: at once, unless its pool is in a crash loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

_FREE = 3  # early deaths in a row that cost no delay
_FIRST = 0.1  # seconds, doubled with each further one
_LONGEST = 30.0
_BROKEN_FIRST = 1.0
_BROKEN_LONGEST = 60.0


@dataclass(frozen=True, slots=True)
class Restarts:
    """A pool's record of deaths. Times are monotonic seconds; `problem` is for people.

    Only a worker that was asked for after the last death that counted counts itself: however many die at
    once, replacing them has not been seen to fail yet.
    """

    early_deaths: int = 0
    failed_setups: int = 0
    counted_at: float = -inf
    not_before: float = 0.0
    problem: str = ""

    def died(self, now: float, *, early: bool, born: float = inf) -> Restarts:
        """A worker died of itself. `early`: before it had finished any job; `born`: when it was asked for."""
        if not early:
            return replace(self, early_deaths=0)
        if born <= self.counted_at:
            return self
        deaths = self.early_deaths + 1
        if deaths <= _FREE:
            return replace(self, early_deaths=deaths, counted_at=now)
        delay = min(_FIRST * 2.0 ** min(deaths - _FREE - 1, 20), _LONGEST)
        return replace(
            self,
            early_deaths=deaths,
            counted_at=now,
            not_before=now + delay,
            problem=f"crash loop: {deaths} workers died before finishing a job; next try in {delay:.3g} s",
        )

    def broken(self, now: float, why: str, *, born: float = inf) -> Restarts:
        """Import or set-up failed: trying at once again would only fail again."""
        if born <= self.counted_at:
            return self
        failures = self.failed_setups + 1
        delay = min(_BROKEN_FIRST * 2.0 ** min(failures - 1, 20), _BROKEN_LONGEST)
        return replace(
            self,
            failed_setups=failures,
            counted_at=now,
            not_before=now + delay,
            problem=f"{why} (tried {failures} times; next try in {delay:.3g} s)" if failures > 1 else why,
        )

    def ready(self) -> Restarts:
        """A worker has been set up: importing works again."""
        return replace(self, failed_setups=0, problem="" if not self.early_deaths else self.problem)

    def finished_a_job(self) -> Restarts:
        return Restarts()
