"""One job at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

# Imported by name, as in the executor: a handler that replaces it must not affect the loop.
from time import monotonic

from supervisor.domain.batching import Prefetch
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.worker.exchange import Run
from supervisor.worker.executor import Executor
from supervisor.worker.parts import Parts
from supervisor.worker.runners.current import CurrentRun


class _Calls:
    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, claims: Sequence[Claim]) -> list[Settlement]:
        return [self._executor.run(claims[0])]

    def failed(self, claims: Sequence[Claim], error: BaseException, started_at: float) -> list[Settlement]:
        return [self._executor.failed(claims[0], error, started_at)]


class OneAtATime:
    """Implements `Runner`. It claims several quick jobs together, and runs one after the other."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._pace = Prefetch(parts.pool.prefetch)
        self._rested = False
        self._current = CurrentRun(parts, _Calls(parts.executor))
        self.watch, self.interrupt = self._current.beside.look, self._current.interrupt

    @property
    def done(self) -> int:
        return self._current.done

    def running(self) -> Collection[Run]:
        return ()

    def collect(self) -> int:
        return 0

    def room(self) -> int:
        """The first job after a rest begins sooner if it is claimed alone."""
        return 1 if self._rested or self._parts.cautious else self._pace.want

    def take(self, claims: Sequence[Claim]) -> bool:
        exchange, current, requests = self._parts.exchange, self._current, self._parts.slot.requests
        if not exchange.held.waiting:
            return False
        before, rested, self._rested = current.done, self._rested, False
        began = current.begin_round(rested=rested)
        while (claim := exchange.held.next()) is not None:
            current.run([claim])
            if requests.drain_requested:
                exchange.held.release()
        self._pace.observe(current.done - before, current.end_round() - began)
        return True

    def rest(self) -> float:
        self._parts.executor.recorder.read_meters(monotonic())
        self._rested = True
        return inf

    def check(self, *, closely: bool) -> bool:
        return self._parts.fitness.look(self.done, closely=closely)

    def host(self, loop: Callable[[], None]) -> None:
        loop()

    def detach(self) -> None:
        """The fork ends where its handler ends; it runs no other job."""
