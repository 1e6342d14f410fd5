"""Jobs in batches, whose handler takes several together.

When a batch goes wrong, it is not known which job is the cause. A batch that fails, exceeds its time limit or
kills its worker is returned to the queue, and the attempts do not count. From then on its jobs run in batches of
at most half its size (`Exchange.limits`), until the job that fails or kills runs alone and can be charged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

# Imported by name, as in the executor: a handler that replaces it must not affect the loop.
from time import monotonic
from traceback import clear_frames
from typing import Any

from supervisor.domain.batching import Candidate
from supervisor.domain.errors import Retry
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement, released, suspected
from supervisor.worker import forked
from supervisor.worker.context import RUN_ENDED, BatchContext, JobInterrupted
from supervisor.worker.executor import Executor, decoded, described
from supervisor.worker.outcomes import BadPayload, NotBegun, Reported, is_out_of_memory
from supervisor.worker.parts import Parts
from supervisor.worker.recorder import WORTH
from supervisor.worker.runners.batch_plan import plan_of
from supervisor.worker.runners.current import Sequential


class Batches(Sequential):
    """Implements `Runner`. Claims wait in the exchange until a batch is full, or the first has waited `batch_wait`. The
    plan decides which of them run together; the others return to the queue.
    """

    def __init__(self, parts: Parts) -> None:
        executor = parts.executor
        self._plan = plan_of(parts.pool, executor.handler, executor.log, cautious=parts.cautious)
        self._limits: dict[int, int] = {}
        self._begin_at: float | None = None  # when a batch begins that has jobs, but is not full
        calls = BatchExecutor(executor, too_large=self._plan.too_large)
        super().__init__(parts, calls.run, calls.failed)

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
        return super().rest() if self._begin_at is None else self._begin_at - monotonic()

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


class BatchExecutor:
    """`executor` judges each job of a batch. `too_large` says whether a batch of this size was the cause of a lack of
    memory and the next ones are smaller.
    """

    def __init__(self, executor: Executor, *, too_large: Callable[[int], bool] = lambda size: False) -> None:
        self._executor = executor
        self._too_large = too_large
        handle: Any = getattr(executor.handler, "handle_batch")  # noqa: B009 - a program has none
        middleware = executor.middleware
        self._handle = handle if middleware is None else middleware.around(handle)

    def run(self, claims: Sequence[Claim]) -> list[Settlement]:
        """Run several jobs together. A failure that no single payload explains is charged to no job: the jobs return to
        the queue and run in smaller batches.
        """
        executor = self._executor
        started_at = executor.clock()
        payloads: list[Any] = []
        taken: list[Claim] = []
        settlements: list[Settlement] = []
        for claim in claims:
            try:
                payloads.append(decoded(claim.payload))
                taken.append(claim)
            except BadPayload as error:
                settlements.append(executor.unsuccessful(claim, error, started_at))
        if taken:
            settlements += self._run_together(taken, payloads, started_at)
        return settlements

    def _run_together(self, claims: list[Claim], payloads: list[Any], started_at: float) -> list[Settlement]:
        executor = self._executor
        contexts = [executor.context(claim) for claim in claims]
        batch = BatchContext(executor.board, contexts)
        executor.recorder.run_log.run = claims[0]
        try:
            values = self._handle(payloads, batch)
            forked.leave()
        except BaseException as error:
            forked.leave(error)
            return self.failed(claims, error, started_at)
        finally:
            batch.end()
            for ctx in contexts:
                ctx._board = RUN_ENDED
        together = zip(claims, contexts, values, strict=True)
        outcome = executor.outcome
        return self._shared([outcome(claim, ctx, value, started_at) for claim, ctx, value in together], started_at)

    def failed(self, claims: Sequence[Claim], error: BaseException, started_at: float) -> list[Settlement]:
        """The settlements for a run that has raised. A retry that a batch asks for applies to all of its jobs."""
        executor = self._executor
        if len(claims) == 1 or isinstance(error, Retry) or (isinstance(error, Reported) and error.kind == "retry"):
            return self._shared([executor.unsuccessful(claim, error, started_at) for claim in claims], started_at)
        if isinstance(error, NotBegun):
            return self._shared([released(claim) for claim in claims], started_at)
        from supervisor.telemetry import events  # imported here, as most batches succeed

        message, stack = described(error)
        if isinstance(error, JobInterrupted):
            message = executor.over_limit(claims[0]) if executor.timed_out(claims[0]) else "cancelled"
        (executor.log or events()).warning(
            "batch_failed",
            jobs=[claim.job_id for claim in claims],
            types=sorted({claim.type for claim in claims}),
            error=message,
            stack=stack,
            hint="the attempts do not count; the jobs run again in smaller batches, until the failing one runs alone",
        )
        if is_out_of_memory(error) and self._too_large(len(claims)):
            clear_frames(error.__traceback__)  # they refer to what has filled the memory
        elif isinstance(error, MemoryError):
            executor.make_room(error)
        return self._shared([suspected(claim, len(claims)) for claim in claims], started_at)

    def _shared(self, settlements: list[Settlement], started_at: float) -> list[Settlement]:
        """Each job's share of what its batch used; the output of the batch belongs to all of them."""
        recorder = self._executor.recorder
        recorder.run_log.run = None
        worth = self._executor.clock() - started_at >= WORTH or recorder.run_log.size
        if not worth and all(settlement.simple for settlement in settlements):
            return settlements
        usage = recorder.usage(started_at)
        if usage.cpu_time is not None:
            usage = usage._replace(cpu_time=usage.cpu_time / len(settlements))
        return [settlement._replace(usage=usage) for settlement in settlements]
