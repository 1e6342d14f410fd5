"""What a pool remembers of the ends of its workers and templates, and what follows for the next ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from supervisor.domain.suspicion import Suspicion
from supervisor.supervision import exit_reason
from supervisor.supervision.exit_reason import ExitReport
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import RecycleReason

RELOADED = "reload"
OVER_MEMORY = "over max_memory"
STALE = {
    RecycleReason.OLD: "near max_jobs_per_worker",
    RecycleReason.LARGE: OVER_MEMORY,
    RecycleReason.FAR_LARGE: OVER_MEMORY,
    RecycleReason.LEAKY: "too many files left open by its jobs",
    RecycleReason.CHANGED: "its process was changed by a job",
}
CAUTIOUS = "cautious for long enough"
_REASONS = {
    STALE[RecycleReason.OLD]: "max_jobs_per_worker",
    STALE[RecycleReason.LARGE]: "max_memory",
    STALE[RecycleReason.LEAKY]: "open_files",
    STALE[RecycleReason.CHANGED]: "process_changed",
    CAUTIOUS: "cautious",
}
_CAUTION = 30.0  # seconds: the suspects, which are due again, come before most other jobs
_NOT_ITS_FAULT = (exit_reason.TEMPLATE, exit_reason.TEMPLATE_UNPROVEN, exit_reason.ALONE, exit_reason.UNWATCHED)
_SAYS_NOTHING = (exit_reason.CANCELLED, exit_reason.TEARDOWN)  # about whether the next worker can do its jobs


@dataclass(slots=True)
class Failures:
    """Times are monotonic seconds. Each release has a back-off of its own."""

    suspicion: Suspicion = field(default_factory=Suspicion)
    suspected_at: float = -inf  # when the last suspicion has begun
    trusted_at: float = inf  # when it has ended
    deaths: int = 0
    restarted: Counter[str] = field(default_factory=Counter)  # workers to be replaced, by reason

    def ended(self, end: ExitReport, worker: WorkerProcess, now: float) -> None:
        """A worker has ended."""
        restarts, born = worker.release.restarts, worker.asked_at
        if end.broken:
            restarts = restarts.broken(now, end.message, born=born, sure=not end.by_signal)
        elif not end.expected and end.reason not in _NOT_ITS_FAULT:
            self.deaths += 1
            if end.reason not in _SAYS_NOTHING:
                restarts = restarts.died(now, early=end.early, born=born)
            before = self.suspicion
            self.suspicion = before.died(end.uncommitted, end.last_job)
            if end.charge == "crash" and end.run[0] == end.last_job != 0:
                self.suspicion = self.suspicion.accused(end.last_job)
            if self.suspicion is not before:
                self.suspected_at = now
        worker.release.restarts = restarts
        if not end.expected:
            self.restarted[end.reason] += 1
        elif worker.stale and end.reason != exit_reason.SHUTDOWN:
            self.restarted[_REASONS.get(worker.stale, worker.stale)] += 1

    def committed(self, worker: WorkerProcess, jobs: int, now: float, *, lost: bool) -> None:
        """A worker has committed this many jobs. One of them does not count if its program was `lost`."""
        release = worker.release
        if jobs > lost and release.restarts.early_deaths:
            release.restarts = release.restarts.committed_a_job()
        # What one of an earlier suspicion has committed says nothing about these suspects.
        if worker.cautious and self.suspicion.cautious and worker.asked_at >= self.suspected_at:
            self.suspicion = self.suspicion.committed(jobs)
            self.trusted_at = inf if self.suspicion.cautious else now

    def too_cautious(self, worker: WorkerProcess, now: float) -> bool:
        """Whether a worker is still cautious although nothing is suspected any more: as long as it lives, it takes no
        batches and runs no jobs side by side. Not at once: other jobs may have come before the suspects.
        """
        return worker.cautious and not self.suspicion.cautious and now >= self.trusted_at + _CAUTION
