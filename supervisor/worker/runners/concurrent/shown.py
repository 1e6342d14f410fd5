"""Several runs in one slot: how many there are, and the one that must end first."""

from __future__ import annotations

import threading

from supervisor.system.slot import Work
from supervisor.worker.runners.concurrent.run import ConcurrentRun, Key


class Shown:
    """The supervisor kills the worker if the run that is shown does not end in time. May be used by any thread, but
    `begin` by that of the loop, which alone adds to `runs`.
    """

    def __init__(self, work: Work, runs: dict[Key, ConcurrentRun]) -> None:
        self._work = work
        self._runs = runs
        self._lock = threading.Lock()
        self._shown: ConcurrentRun | None = None
        self._doubtful = False
        self._running = self._ended = 0  # runs; changed under the lock

    @property
    def is_outdated(self) -> bool:
        """Whether the run that is shown has ended."""
        return self._shown is not None and self._shown.ended

    def begin(self, new: dict[Key, ConcurrentRun], *, doubtful: bool) -> None:
        """`doubtful`: something that earlier jobs have left may end the first of them."""
        with self._lock:
            self._doubtful = doubtful
            self._running += len(new)
            self._runs.update(new)
        self.refresh()

    def end(self, run: ConcurrentRun) -> None:
        """At once: it may take long until its outcome is written, and until then it must not be taken to run."""
        with self._lock:
            run.ended = True
            self._running -= 1
            self._ended += 1
            if run is self._shown:
                self._work.extend(0.0)  # its limit is over; the next one is shown in a moment
            self._work.end(self._ended, (run.claim.job_id, run.claim.token), self._running)

    def refresh(self) -> None:
        with self._lock:
            runs = [run for run in list(self._runs.values()) if not run.ended]
            first, work = min(runs, key=_must_end, default=None), self._work
            if first is not self._shown:
                work.forget_progress()
            self._shown = first
            if first is None:
                work.show((0, 0, 0.0, 0.0), 0, doubtful=False)
                return
            claim, doubtful = first.claim, self._doubtful and len(runs) == 1
            work.show((claim.job_id, claim.token, first.started, first.deadline), len(runs), doubtful=doubtful)
            if first.progress is not None:
                work.progress(*first.progress)

    def progress(self, run: ConcurrentRun) -> None:
        """It has reported some."""
        if run is self._shown and run.progress is not None:
            self._work.progress(*run.progress)


def _must_end(run: ConcurrentRun) -> float:
    return run.must_end
