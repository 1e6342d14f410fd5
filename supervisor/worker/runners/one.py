"""One job at a time."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.batching import Prefetch
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.worker.executor import Executor
from supervisor.worker.parts import Parts
from supervisor.worker.runners.current import Sequential


class _Calls:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, claims: Sequence[Claim]) -> list[Settlement]:
        return [self._executor.run(claims[0])]

    def failed(self, claims: Sequence[Claim], error: BaseException, started_at: float) -> list[Settlement]:
        return [self._executor.failed(claims[0], error, started_at)]


class OneAtATime(Sequential):
    """Implements `Runner`. It claims several quick jobs together, and runs one after the other."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts, _Calls(parts.executor))
        self._pace = Prefetch(parts.pool.prefetch)

    def room(self) -> int:
        """The first job after a rest begins sooner if it is claimed alone."""
        return 1 if self._rested or self._parts.cautious else self._pace.want

    def take(self, claims: Sequence[Claim]) -> bool:
        held, current, requests = self._parts.exchange.held, self._current, self._parts.slot.requests
        if not held.waiting:
            return False
        before, rested, self._rested = current.done, self._rested, False
        began = current.begin_round(rested=rested)
        while (claim := held.next()) is not None:
            current.run([claim])
            if requests.drain_requested:
                held.release()
        self._pace.observe(current.done - before, current.end_round() - began)
        return True
