"""What a pool remembers of the ends of its workers and templates, and what follows for the next ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from supervisor.supervision import exit_reason
from supervisor.supervision.exit_reason import ExitReport
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import RecycleReason
from supervisor.telemetry import events

RELOADED = "reload"
OVER_MEMORY = "over max_memory"
STALE = {
    RecycleReason.OLD: "near max_jobs_per_worker",
    RecycleReason.LARGE: OVER_MEMORY,
    RecycleReason.FAR_LARGE: OVER_MEMORY,
    RecycleReason.LEAKY: "too many files left open by its jobs",
    RecycleReason.CHANGED: "its process was changed by a job",
    RecycleReason.INTERRUPTED: "what an interrupted job has begun may go on",
}
CAUTIOUS = "cautious for long enough"
_REASONS = {
    STALE[RecycleReason.OLD]: "max_jobs_per_worker",
    STALE[RecycleReason.LARGE]: "max_memory",
    STALE[RecycleReason.LEAKY]: "open_files",
    STALE[RecycleReason.CHANGED]: "process_changed",
    STALE[RecycleReason.INTERRUPTED]: "interrupted",
    CAUTIOUS: "cautious",
}
_CAUTION = 30.0  # seconds: the suspects, which are due again, come before most other jobs
_MOST_SUSPECTS = 64  # that are remembered
_NOT_ITS_FAULT = (exit_reason.TEMPLATE, exit_reason.ALONE, exit_reason.UNWATCHED)
# Ends that say nothing about whether the next worker can do its jobs.
_SAYS_NOTHING = (exit_reason.CANCELLED, exit_reason.TEARDOWN, exit_reason.AFTER_INTERRUPT)


@dataclass(slots=True)
class Failures:
    """Times are monotonic seconds. Each release has a back-off of its own.

    If a worker dies after jobs had ended and before their outcomes were committed, one of them may have caused that. No
    job is charged the first time; the last to end is a suspect. The worker that replaces the dead one is cautious: it
    commits after each job, so that the next such death shows which job it was.
    """

    suspects: tuple[int, ...] = ()
    cautious_due: list[int] = field(default_factory=list)  # outcomes that were lost, for each cautious one
    deaths: int = 0
    restarted: Counter[str] = field(default_factory=Counter)  # workers to be replaced, by reason

    def ended(self, end: ExitReport, worker: WorkerProcess, now: float) -> None:
        """A worker has ended."""
        restarts, born, caution = worker.release.restarts, worker.asked_at, worker.caution
        if end.broken:
            restarts = restarts.broken(now, end.message, born=born, sure=not end.by_signal)
        elif not end.expected and end.reason not in _NOT_ITS_FAULT:
            self.deaths += 1
            if end.reason not in _SAYS_NOTHING:
                restarts = restarts.died(now, early=end.early, born=born)
            accused = end.charge == "crash" and end.run[0] == end.last_job != 0  # it will run again
            if end.uncommitted or accused:
                self.suspects = (*(job for job in self.suspects if job != end.last_job), end.last_job)[-_MOST_SUSPECTS:]
                caution = max(end.uncommitted, caution, 1)
        worker.release.restarts = restarts
        if caution and not end.expected:
            self.cautious_due.append(caution)
        if not end.expected:
            self.restarted[end.reason] += 1
        elif worker.stale and end.reason != exit_reason.SHUTDOWN:
            self.restarted[short_reason(worker.stale)] += 1

    def committed(self, worker: WorkerProcess, jobs: int, *, lost: bool) -> None:
        """A worker has committed this many jobs. One of them does not count if its program was `lost`."""
        release = worker.release
        if jobs > lost and release.restarts.early_deaths:
            release.restarts = release.restarts.committed_a_job()

    def next_caution(self) -> int:
        """The `caution` of the next worker."""
        return self.cautious_due.pop() if self.cautious_due else 0


def plan_replacement(worker: WorkerProcess, why: str) -> None:
    """A successor is started for it, and it leaves; nothing if that is planned already."""
    if not worker.stale:
        worker.stale = why
        events(process="supervisor").info(
            "replacement_planned", pool=worker.pool, worker=worker.name, pid=worker.pid, reason=short_reason(why)
        )


def short_reason(stale: str) -> str:
    """Why a worker is to be replaced, as one word for metrics and the log."""
    return _REASONS.get(stale, stale)


def is_cautious_enough(worker: WorkerProcess, committed: int, now: float) -> bool:
    """Whether a cautious worker has committed more jobs than were suspected. As long as it lives, it takes no batches
    and runs no jobs side by side. Not at once: other jobs may have come before the suspects.
    """
    return 0 < worker.caution < committed and now >= worker.asked_at + _CAUTION
