"""The store of the heartbeat thread, which settles and shows progress while the main thread runs a job."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.domain.settlement import Settlement
from supervisor.store.base import Claims, Engine, Exchange, JobSelector
from supervisor.system import settled_notice

_NO_JOBS = JobSelector((), "")


class SpareStore:
    """Opened on first use. `patience` is how many seconds it waits for other writers; `closed` tells whether this
    process must not use a store any more, because a handler has closed its files.
    """

    def __init__(
        self, engine: Engine, owner: str, patience: float, closed: Callable[[], bool], *, keep_done: bool = True
    ) -> None:
        self._engine = engine
        self._owner = owner
        self._patience = patience
        self._keep_done = keep_done
        self._closed = closed
        self._claims: Claims | None = None

    def settle(self, settlements: Sequence[Settlement], now: float) -> Exchange | None:
        """None if this process must not use a store: the main thread will see why, and exit."""
        claims = self._open()
        if claims is None:
            return None
        exchange = claims.settle_and_claim(self._owner, settlements, _NO_JOBS, 0, 0.0, now)
        settled_notice.notify()
        return exchange

    def show_progress(self, run: tuple[int, int], batch: int, fraction: float, text: str, now: float) -> None:
        """Store the progress of a run, (job, token), or of the `batch` of this size to which that belongs."""
        claims = self._open()
        if claims is None:
            return
        # What has not begun was handed back long ago, so what is held is the batch.
        runs = [run] if batch == 1 else [(claim.job_id, claim.token) for claim in claims.held_by(self._owner)]
        claims.show_progress(self._owner, runs, fraction, text, now)

    def _open(self) -> Claims | None:
        if self._closed():
            return None
        if self._claims is None:
            self._claims = self._engine.claims(self._patience, keep_done=self._keep_done)
        return self._claims
