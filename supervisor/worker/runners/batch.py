"""Jobs in batches, whose handler takes several together.

When a batch goes wrong, it is not known which job is the cause. A batch that fails, exceeds its time limit or
kills its worker is returned to the queue, and the attempts do not count. From then on its jobs run in batches of
at most half its size (`Exchange.limits`), until the job that fails or kills runs alone and can be charged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, inf
from time import monotonic
from traceback import clear_frames
from typing import TYPE_CHECKING, Any

from supervisor.domain.batching import AutoBatchSize, Candidate, as_cost, as_key, at_path, together
from supervisor.domain.errors import Retry
from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement, released, suspected
from supervisor.worker import returned_fork
from supervisor.worker.context import RUN_ENDED, BatchContext, JobInterrupted
from supervisor.worker.executor import Executor, decoded, described
from supervisor.worker.handler import BadPayload, NotBegun, Reported
from supervisor.worker.loop import Parts
from supervisor.worker.runners.one_at_a_time import Sequential

if TYPE_CHECKING:
    from supervisor.config import PoolSettings

_MOST_CLAIMED = 256
_LEAST_SHARE = 0.25  # of the claims that have the first one's key: with less, batches are not full
_WEIGHT = 0.5  # of the latest claims in the averages
_DEEPEST = 8  # causes of an error


class Batches(Sequential):
    """Implements `Runner`. Claims wait in the exchange until a batch is full, or the first has waited `batch_wait`. The
    plan decides which of them run together; the others return to the queue.
    """

    def __init__(self, parts: Parts) -> None:
        self._plan = BatchPlan(parts.pool, cautious=parts.cautious)
        calls = BatchExecutor(parts.executor, too_large=self._plan.too_large)
        super().__init__(parts, calls.run, calls.failed)
        self._limits: dict[int, int] = {}
        self._begin_at: float | None = None  # when a batch begins that has jobs, but is not full

    def room(self) -> int:
        return self._plan.want - self._parts.exchange.held.waiting

    def take(self, claims: Sequence[Claim]) -> bool:
        exchange = self._parts.exchange
        if claims:
            self._limits.update(exchange.limits(claims))
        if not exchange.held.waiting or self._waits_for_more():
            return False
        rested, self._begin_at = self._rested, None
        self._begin_round()
        if batch := self._next():
            settlements = self._run(batch)
            self._plan.ran(settlements, self._began, monotonic(), rested=rested)
        self._end_round()
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
        return now < self._begin_at and not self._parts.slot.page.drain

    def _next(self) -> list[Claim]:
        """The claims of the next batch. Nothing else is held while it runs: its death concerns none of the others."""
        exchange, slot = self._parts.exchange, self._parts.slot
        batch, rest = self._plan.divide(list(iter(exchange.held.next, None)), self._limits)
        exchange.held.give_back(rest)
        while exchange.held and not slot.page.drain:
            exchange.turn(0)
        if slot.page.drain:
            exchange.held.give_back(batch)
            return []
        self._parts.slot.page.claims = len(batch)
        return batch


class BatchPlan:
    """What batches consist of: the first `batch_size` jobs, or those with one key, within a budget, in a size that it
    finds itself. A `cautious` worker runs one job at a time.
    """

    def __init__(self, pool: PoolSettings, *, cautious: bool = False) -> None:
        self._most = 1 if cautious else pool.batch_size
        self._key, self._cost = pool.batch_key, pool.batch_cost
        self._budget = pool.batch_budget or inf
        automatic = pool.batch_auto and not cautious
        self._auto = AutoBatchSize(pool.batch_size, pool.latency_target) if automatic else None
        self._ordinary = True  # no job of the batch was in one that went wrong
        self._share = 1.0  # average part of the claims that have the first one's key
        self._affordable = float(self._most)  # average number of jobs within the budget
        self._ended: float | None = None  # when the last batch did, monotonic seconds

    @property
    def size(self) -> int:
        """How many jobs a batch should have."""
        return self._most if self._auto is None else self._auto.size

    @property
    def want(self) -> int:
        """How many to claim for that: more if the jobs have different keys, fewer if the budget ends batches sooner."""
        jobs = min(self.size, 1.5 * self._affordable + 1)
        return min(_MOST_CLAIMED, ceil(jobs / max(self._share, _LEAST_SHARE)))

    def divide(self, claims: Sequence[Claim], limits: Mapping[int, int]) -> tuple[list[Claim], list[Claim]]:
        """The claims that run together now, and the others. `limits` has the largest batch of a job that was in one
        that went wrong.
        """
        candidates = [self._candidate(claim, limits.get(claim.job_id, self._most)) for claim in claims]
        chosen = set(together(candidates, self.size, self._budget))
        self._learn(candidates, len(chosen))
        batch = [claim for place, claim in enumerate(claims) if place in chosen]
        self._ordinary = not any(claim.job_id in limits for claim in batch)
        return batch, [claim for place, claim in enumerate(claims) if place not in chosen]

    def _candidate(self, claim: Claim, most: int) -> Candidate:
        """A job that has no usable key or cost runs alone: what is wrong with it is its own."""
        if not (self._key or self._cost):
            return Candidate("", 0.0, most)
        try:
            payload = decoded(claim.payload)
            key = as_key(at_path(payload, self._key)) if self._key else ""
            return Candidate(key, as_cost(at_path(payload, self._cost)) if self._cost else 0.0, most)
        except (BadPayload, ValueError, RecursionError):
            return Candidate(None, 0.0, 1)

    def _learn(self, candidates: Sequence[Candidate], chosen: int) -> None:
        same = sum(candidate.key == candidates[0].key for candidate in candidates)
        if len(candidates) > 1:
            self._share += _WEIGHT * (same / len(candidates) - self._share)
        if chosen < same and chosen < self.size:
            self._affordable += _WEIGHT * (chosen - self._affordable)
        else:
            self._affordable = max(self._affordable, chosen)

    def ran(self, settlements: Sequence[Settlement], began: float, ended: float, *, rested: bool) -> None:
        """A batch has run; times are monotonic seconds. One of which nothing succeeded says nothing about its size.
        `rested`: the worker had no jobs before.
        """
        between = None if rested or self._ended is None else began - self._ended
        self._ended = ended
        if self._auto and self._ordinary and any(settlement.status is Status.DONE for settlement in settlements):
            self._auto.observe(len(settlements), ended - began, between)

    def too_large(self, size: int) -> bool:
        """A batch has run out of memory. Whether the next ones will be smaller for that."""
        if self._auto and self._ordinary:
            self._auto.out_of_memory(size)
        return self._auto is not None


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
            returned_fork.leave()
        except BaseException as error:
            returned_fork.leave(error)
            return self.failed(claims, error, started_at)
        finally:
            batch.end()
            for ctx in contexts:
                ctx._board = RUN_ENDED
        together = zip(claims, contexts, values, strict=True)
        outcome = executor.outcome
        return executor.recorded([outcome(claim, ctx, value, started_at) for claim, ctx, value in together], started_at)

    def failed(self, claims: Sequence[Claim], error: BaseException, started_at: float) -> list[Settlement]:
        """The settlements for a run that has raised. A retry that a batch asks for applies to all of its jobs."""
        executor = self._executor
        if len(claims) == 1 or isinstance(error, Retry) or (isinstance(error, Reported) and error.kind == "retry"):
            return executor.recorded([executor.unsuccessful(claim, error, started_at) for claim in claims], started_at)
        if isinstance(error, NotBegun):
            return executor.recorded([released(claim) for claim in claims], started_at)
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
        return executor.recorded([suspected(claim, len(claims)) for claim in claims], started_at)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this, or what caused it, is a lack of memory: of this machine, or of a device.

    torch raises `torch.cuda.OutOfMemoryError`, earlier a RuntimeError "CUDA out of memory"; other libraries have
    classes of that name, too. A program's exceptions come as text.
    """
    cause: BaseException | None = error
    for _ in range(_DEEPEST):
        if cause is None:
            return False
        if isinstance(cause, MemoryError) or (isinstance(cause, Reported) and cause.kind == "memory"):
            return True
        text = described(cause)[0].lower()
        if "outofmemoryerror" in text or ("out of memory" in text and isinstance(cause, (RuntimeError, Reported))):
            return True
        cause = cause.__cause__
    return False
