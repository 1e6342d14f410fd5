"""What a pool remembers of the ends of its workers and templates, and what follows for the next ones."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import inf

from supervisor.domain.restart import Restarts
from supervisor.domain.staffing import OLD_VERSION, Missing
from supervisor.domain.suspicion import Suspicion
from supervisor.domain.template_deaths import TemplateDeaths
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
_NOT_ITS_FAULT = (exit_reason.TEMPLATE, exit_reason.TEMPLATE_UNPROVEN, exit_reason.ALONE, exit_reason.UNWATCHED)
_SAYS_NOTHING = (
    exit_reason.CANCELLED,
    exit_reason.TEARDOWN,
    exit_reason.AFTER_INTERRUPT,
)  # about whether the next worker can do its jobs


@dataclass(slots=True)
class Failures:
    """Times are monotonic seconds. Workers with the code from before a reload have a back-off of their own; those whose
    template forks no more have none.
    """

    restarts: Restarts = field(default_factory=Restarts)
    old_restarts: Restarts = field(default_factory=Restarts)
    suspicion: Suspicion = field(default_factory=Suspicion)
    suspected_at: float = -inf  # when the last suspicion has begun
    trusted_at: float = inf  # when it has ended
    template_deaths: TemplateDeaths = field(default_factory=TemplateDeaths)
    deaths: int = 0
    restarted: Counter[str] = field(default_factory=Counter)  # workers to be replaced, by reason

    def reloaded(self) -> None:
        """The failures of the old code do not count for the new one."""
        self.old_restarts = self.restarts if not self.restarts.failed_setups else self.old_restarts
        self.restarts = Restarts()
        self.template_deaths = TemplateDeaths()

    def ended(self, end: ExitReport, worker: WorkerProcess, now: float) -> None:
        """A worker has ended."""
        restarts, born = self._restarts_of(worker), worker.asked_at
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
        self._set_restarts(worker, restarts)
        if not end.expected:
            self.restarted[end.reason] += 1
        elif worker.stale and end.reason != exit_reason.SHUTDOWN:
            self.restarted[short_reason(worker.stale)] += 1

    def unstarted(self, why: str, now: float, worker: WorkerProcess | None) -> bool:
        """A worker could not be started. Returns False for further failures in the same back-off."""
        restarts = self.restarts if worker is None else self._restarts_of(worker)
        if now < restarts.not_before or (worker is not None and worker.template.retired):
            return False
        self._set_restarts(worker, restarts.broken(now, why))
        return True

    def ready(self, worker: WorkerProcess) -> None:
        """A worker has been set up."""
        self._set_restarts(worker, self._restarts_of(worker).ready())
        if not worker.template.superseded:
            self.old_restarts = Restarts()

    def committed(self, worker: WorkerProcess, jobs: int, now: float, *, lost: bool) -> None:
        """A worker has committed this many jobs. One of them does not count if its program was `lost`."""
        if jobs > lost and self.restarts.early_deaths and not worker.template.superseded:
            self.restarts = self.restarts.committed_a_job()
        # What one of an earlier suspicion has committed says nothing about these suspects.
        if worker.cautious and self.suspicion.cautious and worker.asked_at >= self.suspected_at:
            self.suspicion = self.suspicion.committed(jobs)
            self.trusted_at = inf if self.suspicion.cautious else now

    def too_cautious(self, worker: WorkerProcess, now: float) -> bool:
        """Whether a worker is still cautious although nothing is suspected any more: as long as it lives, it takes no
        batches and runs no jobs side by side. Not at once: other jobs may have come before the suspects.
        """
        return worker.cautious and not self.suspicion.cautious and now >= self.trusted_at + _CAUTION

    def allow(self, wanted: Missing, now: float) -> Missing:
        """How many of the wanted workers may start now."""
        new = 0 if now < max(self.restarts.not_before, self.template_deaths.not_before) else wanted.new
        return Missing(new, 0 if now < self.old_restarts.not_before else wanted.old)

    def old_version(self) -> str:
        """Why a worker with the code from before a reload is still there, for people."""
        if not self.restarts.failed_setups:
            return f"{OLD_VERSION}, to be replaced"
        failed = next((trial for trial in ("canary", "warmup") if f"{trial} failed: " in self.restarts.why), "set-up")
        return f"{OLD_VERSION}; the new one failed its {failed}"

    @property
    def next_try(self) -> float | None:
        """When the last back-off ends; None if there is none."""
        return max(self.restarts.not_before, self.template_deaths.not_before, self.old_restarts.not_before) or None

    def _restarts_of(self, worker: WorkerProcess) -> Restarts:
        return self.old_restarts if worker.template.superseded else self.restarts

    def _set_restarts(self, worker: WorkerProcess | None, restarts: Restarts) -> None:
        if worker is None or not worker.template.superseded:
            self.restarts = restarts
        elif not worker.template.retired:
            self.old_restarts = restarts


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
