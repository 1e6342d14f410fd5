"""How many jobs may run beside which others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

from supervisor.domain.job import Claim
from supervisor.worker.exchange import Exchange
from supervisor.worker.runners.concurrent.run import ConcurrentRun, Key

PATIENCE = 0.05  # seconds that claims may wait for others to end


class Places:
    """A job that ran beside others when a worker died has a limit: it runs beside fewer others the next time. What has
    ended before is committed first.

    Claims that do not fit wait in the exchange. If that takes longer than PATIENCE, another worker may have them.
    """

    def __init__(self, most: int, exchange: Exchange, runs: Mapping[Key, ConcurrentRun]) -> None:
        self._most = most
        self._exchange = exchange
        self._runs = runs
        self._limits: dict[int, int] = {}  # of jobs
        self._waiting_since: float | None = None
        self._least = 0  # with that many running a claim did not fit: none is claimed until there are fewer

    def room(self) -> int:
        """How many jobs could begin now that have no limit."""
        runs = len(self._runs)
        if self._exchange.held.waiting or (self._least and runs >= self._least):
            return 0
        self._least = 0
        return max(0, self._together() - runs)

    def limit(self, claim: Claim) -> int:
        """How many may run at the same time as this one, itself included."""
        return min(self._limits.get(claim.job_id, self._most), self._most)

    def learn(self, limits: Mapping[int, int]) -> None:
        self._limits |= limits

    def ended(self, claim: Claim) -> None:
        self._limits.pop(claim.job_id, None)
        self._waiting_since = None

    def fitting(self, refuse: Callable[[Claim], bool]) -> list[Claim]:
        """Those of the waiting claims that fit now, in order; not those that `refuse` takes."""
        exchange, together, running = self._exchange, self._together(), len(self._runs)
        fitting: list[Claim] = []
        while (claim := exchange.held.next()) is not None:
            if refuse(claim):
                continue
            limit = self.limit(claim)
            together = min(together, limit)
            uncommitted = limit < self._most and exchange.held.unsettled > 0
            if running + len(fitting) >= together or uncommitted:
                exchange.held.return_first(claim)
                self._wait(together)
                break
            fitting.append(claim)
        return fitting

    def _wait(self, together: int) -> None:
        now = monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        elif now - self._waiting_since >= PATIENCE:
            self._least, self._waiting_since = together, None
            self._exchange.held.release()
            self._limits.clear()

    def _together(self) -> int:
        """How many may run at the same time beside those that run."""
        return min([run.together for run in self._runs.values()], default=self._most)
