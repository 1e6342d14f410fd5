"""A worker whose handler takes several jobs at a time, because a model processes many inputs faster together.

When a batch goes wrong, it is not known which job is the cause. A batch that fails, exceeds its time limit or
kills its worker is returned to the queue, and the attempts do not count. From then on its jobs run in batches of
at most half its size (`Claims.limits`), until the job that fails or kills runs alone and can be charged.
"""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic, time

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim
from supervisor.system.slot import State
from supervisor.worker.context import JobInterrupted
from supervisor.worker.worker import Worker


class BatchWorker(Worker):
    """Claims as many jobs as a batch may hold, waits briefly for more, and runs them together."""

    _limits: Mapping[int, int] = {}

    def _want(self) -> int:
        if self._cautious:
            return 1
        return min(self._pool.batch_size, self._pool.max_jobs_per_worker - self._done)

    def _execute(self, claims: list[Claim]) -> None:
        claims = self._gather(claims)
        if self._draining:  # the drain request came between claim and start
            self._buffer.take(claims)
            self._buffer.release()
            return
        self._limits = self._look_up(claims)
        super()._execute(claims)

    def _gather(self, claims: list[Claim]) -> list[Claim]:
        """Wait up to batch_wait for a fuller batch. The worker counts as idle meanwhile, so that new jobs wake it."""
        until = monotonic() + self._pool.batch_wait
        self._slot.state(State.IDLE)
        while len(claims) < self._want() and not self._draining:
            claims += self._exchange(self._want() - len(claims), len(claims))
            self._slot.work.hold(len(claims))
            left = until - monotonic()
            if left <= 0 or len(claims) >= self._want():
                break
            self._sleep(left)
        return claims

    def _look_up(self, claims: list[Claim]) -> Mapping[int, int]:
        """How many jobs may run together with each job whose batch has killed a worker before."""
        while True:
            try:
                return self._store.limits([claim.job_id for claim in claims])
            except StoreError as error:
                if self._draining:
                    return {}
                self._wait_out(error)

    def _run_next(self) -> int:
        """Run the next batch of the claims held. Returns the number of its jobs.

        What has succeeded before is committed first, since the next part may kill the worker.
        """
        while self._buffer.finished and self._buffer.waiting and not self._draining:
            self._exchange(0)
            self._slot.work.hold(self._buffer.waiting)
        batch: list[Claim] = []
        most = self._pool.batch_size
        while len(batch) < most and (claim := self._buffer.next()) is not None:
            limit = self._limits.get(claim.job_id, most)
            if len(batch) >= limit:
                self._buffer.return_first(claim)
                break
            batch.append(claim)
            most = min(most, limit)
        if batch:
            self._run_batch(batch)
        return len(batch)

    def _run_batch(self, batch: list[Claim]) -> None:
        try:
            self._begin(batch[0], len(batch))
            settlements = self._executor.run_batch(batch)
            self._running = None
        except JobInterrupted as error:
            # Raised just before the handler was called, or just after it returned.
            settlements = self._executor.batch_failed(batch, error, time())
            self._running = None
        self._done += len(batch)
        self._slot.work.finish(self._done)
        for settlement in settlements:
            self._buffer.finish(settlement)
        self._fitness.after(settlements[0], self._done, always=self._cautious)
        self._fitness.see_handler()
