"""A worker whose handler takes several jobs at a time, because a model is quicker with many at once.

What goes wrong with many is not known to be anybody's fault. A batch that fails, is over its time or kills its
worker goes back uncharged, and its jobs may be in batches of half its size from then on (`Claims.limits`),
until the one that fails or kills is alone and can be charged.
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
    """Claims as many as a batch may hold, waits a little for more, and runs them together."""

    _limits: Mapping[int, int] = {}

    def _want(self) -> int:
        if self._cautious:
            return 1
        return min(self._pool.batch_size, self._pool.max_jobs_per_worker - self._done)

    def _execute(self, claims: list[Claim]) -> None:
        claims = self._gather(claims)
        if self._draining:  # told to leave between claim and start
            self._hand.take(claims)
            self._hand.release()
            return
        self._limits = self._look_up(claims)
        super()._execute(claims)

    def _gather(self, claims: list[Claim]) -> list[Claim]:
        """Wait up to batch_wait for a fuller batch. Idle meanwhile, so that new jobs wake us."""
        until = monotonic() + self._pool.batch_wait
        self._slot.state(State.IDLE)
        while len(claims) < self._want() and not self._draining:
            claims += self._exchange(self._want() - len(claims), len(claims))
            self._slot.hold(len(claims))
            left = until - monotonic()
            if left <= 0 or len(claims) >= self._want():
                break
            self._sleep(left)
        return claims

    def _look_up(self, claims: list[Claim]) -> Mapping[int, int]:
        """How many may run together with each job whose batch has killed a worker before."""
        while True:
            try:
                return self._store.limits([claim.job_id for claim in claims])
            except StoreError as error:
                if self._draining:
                    return {}
                self._wait_out(error)

    def _run_next(self) -> int:
        """Run the next batch in hand. Returns how many jobs that were.

        What has succeeded before is committed first: the next part may be the one that kills.
        """
        while self._hand.finished and self._hand.waiting and not self._draining:
            self._exchange(0)
            self._slot.hold(self._hand.waiting)
        batch: list[Claim] = []
        most = self._pool.batch_size
        while len(batch) < most and (claim := self._hand.next()) is not None:
            limit = self._limits.get(claim.job_id, most)
            if len(batch) >= limit:
                self._hand.return_first(claim)
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
            # Raised in the instant before the handler was called, or after it had returned.
            settlements = self._executor.batch_failed(batch, error, time())
            self._running = None
        self._done += len(batch)
        self._slot.finish(self._done)
        for settlement in settlements:
            self._hand.finish(settlement)
        self._fitness.after(settlements[0], self._done, always=self._cautious)
        self._fitness.see_handler()
