"""When a worker that died is replaced: at once, unless its pool is in a crash loop."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

from supervisor.domain.duration import human
from supervisor.domain.text import shortened

_FREE = 3  # early deaths in a row that cost no delay
_FIRST = 0.1  # seconds, doubled with each further early death
_LONGEST = 30.0
_BROKEN_FIRST = 1.0
_BROKEN_LONGEST = 60.0
_NEWS = 60.0  # seconds for which a crash loop is reported after its last death
_WHY = 500  # characters of an error


class Restarts(NamedTuple):
    """A pool's record of deaths. Times are monotonic seconds; `why` is the error of the last failed set-up.

    A death counts only if the worker was requested after the last death that counted: however many die at
    once, replacing them has not failed yet.
    """

    early_deaths: int = 0
    failed_setups: int = 0
    counted_at: float = -inf
    delay: float = 0.0
    why: str = ""

    @property
    def not_before(self) -> float:
        """The earliest time for the next worker to start."""
        return self.counted_at + self.delay if self.delay else 0.0

    def problem(self, now: float) -> str:
        """The current problem, for people; "" if there is none."""
        if self.failed_setups:
            again = f" (tried {self.failed_setups} times; next try in {human(self.delay)})"
            return self.why + (again if self.failed_setups > 1 else "")
        if self.early_deaths > _FREE and now < self.counted_at + _NEWS:
            return (
                f"crash loop: {self.early_deaths} workers died before finishing a job; next try in {human(self.delay)}"
            )
        return ""

    def died(self, now: float, *, early: bool, born: float = inf) -> Restarts:
        """A worker died by itself. `early`: before it had committed any job; `born`: when it was requested."""
        if not early:
            return self._replace(early_deaths=0)
        if born <= self.counted_at:
            return self
        deaths = self.early_deaths + 1
        delay = 0.0 if deaths <= _FREE else min(_FIRST * 2.0 ** min(deaths - _FREE - 1, 20), _LONGEST)
        return self._replace(early_deaths=deaths, counted_at=now, delay=delay)

    def broken(self, now: float, why: str, *, born: float = inf, sure: bool = True) -> Restarts:
        """Import or set-up failed: an immediate retry would only fail again. If that is not `sure`, because the worker
        was killed and perhaps by somebody else, one such death is a death like another.
        """
        if born <= self.counted_at:
            return self
        if not (sure or self.early_deaths or self.failed_setups):
            return self.died(now, early=True, born=born)
        failures = self.failed_setups + 1
        delay = min(_BROKEN_FIRST * 2.0 ** min(failures - 1, 20), _BROKEN_LONGEST)
        return self._replace(failed_setups=failures, counted_at=now, delay=delay, why=shortened(why, _WHY))

    def ready(self) -> Restarts:
        """A worker has been set up. The cause of earlier failures is fixed, so earlier crashes no longer count."""
        return Restarts() if self.failed_setups else self

    def committed_a_job(self) -> Restarts:
        return Restarts()
