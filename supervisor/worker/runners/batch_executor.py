"""Calls `handle_batch`, and makes the settlements of its jobs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from traceback import clear_frames
from typing import Any

from supervisor.domain.errors import Retry
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement, released, suspected
from supervisor.worker import forked
from supervisor.worker.context import RUN_ENDED, BatchContext, JobInterrupted
from supervisor.worker.executor import Executor, decoded, described
from supervisor.worker.memory_errors import is_out_of_memory
from supervisor.worker.outcomes import BadPayload, NotBegun, Reported
from supervisor.worker.recorder import WORTH


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
            if not executor.mark[0]:
                forked.end()
        except BaseException as error:
            if not executor.mark[0]:
                forked.end(error)
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
        if isinstance(error, NotBegun) or executor.out_of_files(error):
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
