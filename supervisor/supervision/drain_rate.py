"""How fast a pool empties its queue."""

from __future__ import annotations

from collections.abc import Iterable

from supervisor.supervision.worker_process import WorkerProcess

_WEIGHT = 0.5  # of the latest measurement


class DrainRate:
    """`jobs` per second, from the workers' counters."""

    def __init__(self) -> None:
        self.jobs = 0.0
        self._measured_at = 0.0
        self._finished = 0

    def measure(self, workers: Iterable[WorkerProcess], now: float) -> None:
        """To be called about once a second; `now` is monotonic seconds."""
        finished = sum(worker.slot.read().done for worker in workers)
        if self._measured_at and now > self._measured_at and finished >= self._finished:
            rate = (finished - self._finished) / (now - self._measured_at)
            self.jobs += _WEIGHT * (rate - self.jobs)
        self._measured_at, self._finished = now, finished
