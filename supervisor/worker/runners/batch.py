"""Jobs in batches, whose handler takes several together.

When a batch goes wrong, it is not known which job is the cause. A batch that fails, exceeds its time limit or
kills its worker is returned to the queue, and the attempts do not count. From then on its jobs run in batches of
at most half its size (`Exchange.limits`), until the job that fails or kills runs alone and can be charged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import inf

# Imported by name, as in the executor: a handler that replaces it must not affect the loop.
from time import monotonic
from typing import Any

from supervisor.domain.batching import Candidate
from supervisor.domain.job import Claim
from supervisor.worker.exchange import Run
from supervisor.worker.parts import Parts
from supervisor.worker.runners.batch_executor import BatchExecutor
from supervisor.worker.runners.batch_plan import plan_of
from supervisor.worker.runners.current import CurrentRun


class Batches:
    """Implements `Runner`. Claims wait in the exchange until a batch is full, or the first has waited `batch_wait`. The
    plan decides which of them run together; the others return to the queue.
    """

    def __init__(self, parts: Parts) -> None:
        executor = parts.executor
        self._parts = parts
        self._plan = plan_of(parts.pool, executor.handler, executor.log, executor.mark, cautious=parts.cautious)
        self._limits: dict[int, int] = {}
        self._begin_at: float | None = None  # when a batch begins that has jobs, but is not full
        self._rested = False
        self._current = CurrentRun(parts, BatchExecutor(executor, too_large=self._plan.too_large))
        self.watch, self.interrupt = self._current.beside.look, self._current.interrupt

    @property
    def done(self) -> int:
        return self._current.done

    def running(self) -> Collection[Run]:
        return ()

    def collect(self) -> int:
        return 0

    def room(self) -> int:
        return self._plan.want - self._parts.exchange.held.waiting

    def take(self, claims: Sequence[Claim]) -> bool:
        exchange = self._parts.exchange
        if claims:
            self._limits.update(exchange.limits(claims))
        if not exchange.held.waiting or self._waits_for_more():
            return False
        self._begin_at = None
        current, rested, self._rested = self._current, self._rested, False
        current.begin_round(rested=rested)
        self._plan.begin(self._limits, rested)
        if batch := self._next():
            settlements = current.run(batch)
            self._plan.ran(settlements, current.began, monotonic())
        current.end_round()
        self._limits.clear()
        return True

    def rest(self) -> float:
        if self._begin_at is not None:
            return self._begin_at - monotonic()
        self._parts.executor.recorder.read_meters(monotonic())
        self._rested = True
        return inf

    def check(self, *, closely: bool) -> bool:
        return self._parts.fitness.look(self.done, closely=closely)

    def host(self, loop: Callable[[], None]) -> None:
        loop()

    def detach(self) -> None:
        """The fork ends where its handler ends; it runs no other job."""

    def _waits_for_more(self) -> bool:
        if self._parts.exchange.held.waiting >= min(self._plan.size, self._plan.want):
            return False
        now = monotonic()
        if self._begin_at is None:
            self._begin_at = now + self._parts.pool.batch_wait
        return now < self._begin_at and not self._parts.slot.requests.drain_requested

    def _next(self) -> list[Claim]:
        """The claims of the next batch. Nothing else is held while it runs: its death concerns none of the others."""
        exchange, requests = self._parts.exchange, self._parts.slot.requests
        if self._plan.selects:
            looked: list[tuple[Claim, Candidate]] = []
            while not requests.drain_requested and (claim := exchange.held.next()) is not None:
                if (candidate := self._look(claim)) is not None:
                    looked.append((claim, candidate))
            batch, rest = self._plan.divide(looked)
        else:
            claims, size = list(iter(exchange.held.next, None)), self._plan.size
            batch, rest = claims[:size], claims[size:]
        exchange.held.give_back(rest)
        while exchange.held and not requests.drain_requested:
            exchange.turn(0)
        if requests.drain_requested:
            exchange.held.give_back(batch)
            exchange.held.release()
            return []
        self._parts.slot.work.hold(len(batch))
        return batch

    def _look(self, claim: Claim) -> Candidate | None:
        """What the plan must know of a job; None if it has ended by being asked for that."""
        plan = self._plan
        if not plan.asks_handler:
            return plan.look(claim)
        found: list[Any] = []
        return found[0] if self._current.ask(claim, lambda: found.append(plan.look(claim))) else None
