"""One pool: its workers, its target size and its problems."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from supervisor.config.settings import PoolSettings
from supervisor.domain.devices import assign
from supervisor.domain.isolation import TemplateDeaths
from supervisor.domain.restart import Restarts
from supervisor.domain.scaling import Decision, Load, ScalingPolicy, Taken, decide, still_due
from supervisor.domain.staffing import Counts, Leaving, Missing, leaving, missing
from supervisor.domain.suspicion import Suspicion
from supervisor.domain.text import shortened
from supervisor.maintenance.maintainer import PoolInfo
from supervisor.maintenance.redriver import RedrivePolicy
from supervisor.maintenance.renewer import LockTimes
from supervisor.store.base import JobSelector
from supervisor.supervision import exit_reason
from supervisor.supervision.exit_reason import ExitReport
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel
from supervisor.system.slot import RecycleReason, State

OVER_MEMORY = "over max_memory"
_WORN = {
    RecycleReason.OLD: "near max_jobs_per_worker",
    RecycleReason.LARGE: OVER_MEMORY,
    RecycleReason.LEAKY: "too many files left open by its jobs",
    RecycleReason.CHANGED: "its process was changed by a job",
}
_REASONS = {
    _WORN[RecycleReason.OLD]: "max_jobs_per_worker",
    _WORN[RecycleReason.LARGE]: "max_memory",
    _WORN[RecycleReason.LEAKY]: "open_files",
    _WORN[RecycleReason.CHANGED]: "process_changed",
}
_NOT_ITS_FAULT = (exit_reason.TEMPLATE, exit_reason.ALONE, exit_reason.UNWATCHED)
_RATE_WEIGHT = 0.5  # weight of the latest second in the drain rate
_FAR_OVER = 1.1  # times max_memory; then a worker leaves before its successor is ready


@dataclass(slots=True)
class Waiting:
    """What the maintainer last measured: due jobs and the oldest's age in seconds, at a monotonic second."""

    due: int = 0
    oldest_age: float = 0.0
    at: float = 0.0


@dataclass(eq=False)
class Pool:
    """Decides; the supervisor acts. Times are monotonic seconds."""

    settings: PoolSettings
    wake: int  # the eventfd on which its idle workers sleep
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    restarts: Restarts = field(default_factory=Restarts)
    old_restarts: Restarts = field(default_factory=Restarts)  # of workers that run the code from before a reload
    suspicion: Suspicion = field(default_factory=Suspicion)
    template_deaths: TemplateDeaths = field(default_factory=TemplateDeaths)
    waiting: Waiting = field(default_factory=Waiting)
    fixed: int | None = None  # set by an operator
    closing: bool = False  # no longer in the configuration
    untried: bool = False  # no worker has been set up with the new code since a reload
    target: int = 0
    reason: str = "starting"
    roof: int | None = None
    rate: float = 0.0
    deaths: int = 0
    restarted: Counter[str] = field(default_factory=Counter)  # workers to be replaced, by reason
    largest_worker: int = 0  # bytes; the largest ever measured

    def __post_init__(self) -> None:
        self._needed_at = self._shrunk_at = self._rated_at = 0.0
        self._finished = 0
        self._devices: dict[str, str] = {}  # the latest device of each name

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def image(self) -> tuple[Any, ...]:
        """Pools with the same value share one template: handler module, environment, preload, start and threads,
        and with preload_setup everything that is passed to the set-up.
        """
        settings = self.settings
        module = settings.handler.partition(":")[0]
        told = (settings.handler, settings.options, settings.capabilities) if settings.preload_setup else ()
        return (
            module,
            tuple(sorted(settings.env.items())),
            settings.preload,
            settings.start,
            settings.threads,
            bool(settings.gpus),  # GPU pools have stricter rules for an image
            *told,
        )

    def reconfigure(self, settings: PoolSettings) -> None:
        """Apply a reload: workers with new code or another model may differ in size, and old failures do not count."""
        self.settings = settings
        self.largest_worker = 0
        self.old_restarts = self.restarts if not self.restarts.failed_setups else self.old_restarts
        self.restarts = Restarts()
        self.template_deaths = TemplateDeaths()
        self.untried = True

    def info(self) -> PoolInfo:
        """What the maintainer must know about it."""
        settings = self.settings
        wanted = JobSelector(settings.types, " ".join(settings.capabilities))
        locks = LockTimes(settings.lock_time, settings.heartbeat_timeout)
        chance = RedrivePolicy(wanted, settings.retry_failed_every, settings.retry_failed_times)
        return PoolInfo(wanted, self.wake, locks, chance)

    # Its workers

    @property
    def asleep(self) -> bool:
        """Whether it has no worker and needs none."""
        return not (self.target or self.living())

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers.values() if worker.living]

    def staying(self) -> list[WorkerProcess]:
        """The workers that are neither leaving nor to be replaced."""
        return [worker for worker in self.living() if not worker.leaving and not worker.stale]

    def stale(self) -> list[WorkerProcess]:
        """The workers that are to be replaced and have not been asked to leave."""
        return [worker for worker in self.living() if worker.stale and not worker.leaving]

    def counts(self) -> Counts:
        living, staying = self.living(), self.staying()
        return Counts(
            target=self.target,
            staying=len(staying),
            starting=sum(not worker.is_ready for worker in staying),
            idle=sum(_is_idle(worker) for worker in staying),
            stale=len(self.stale()),
            leaving=sum(worker.leaving for worker in living),
            unexplained=len(self.workers) - len(living),
        )

    def missing(self, now: float, *, unproven: bool) -> Missing:
        """How many workers to start now. `unproven`: there is old code, and no worker runs the new code yet."""
        found = missing(
            self.counts(),
            failed=bool(self.restarts.failed_setups),
            unproven=unproven,
            isolated=self.template_deaths.isolated(now),
        )
        new = 0 if now < max(self.restarts.not_before, self.template_deaths.not_before) else found.new
        return Missing(new, 0 if now < self.old_restarts.not_before else found.old)

    def to_drain(self) -> list[WorkerProcess]:
        """The workers that should drain now."""
        found: Leaving = leaving(self.counts(), self.roof, fixed=self.fixed is not None or self.closing)
        stale = self.stale()
        if not stale and not any(found):
            return []
        limit = self.settings.max_memory
        far_over = [w for w in stale if limit is not None and w.memory.unique > limit * _FAR_OVER]
        youngest = sorted(self.staying(), key=lambda worker: -worker.asked_at)
        idle = [worker for worker in youngest if _is_idle(worker)]
        largest = sorted(youngest, key=lambda worker: (not _is_idle(worker), -worker.memory.unique))
        anyone = largest if self.fixed is None else [*idle, *(w for w in youngest if w not in idle)]
        chosen = [*far_over, *stale[: found.stale], *idle[: found.idle], *anyone[: found.anyone]]
        return list(dict.fromkeys(chosen))

    @property
    def next_try(self) -> float | None:
        """When its back-off ends; None if there is none."""
        if self.closing or len(self.living()) >= self.target:
            return None
        return max(self.restarts.not_before, self.template_deaths.not_before, self.old_restarts.not_before) or None

    # Decisions and their inputs

    def decide(self, now: float) -> Decision:
        """Update the target size and return the decision."""
        if self.closing:
            self.target, self.reason, self.roof = 0, "no longer in the configuration", None
            return Decision(0, self.reason, needed=False)
        settings = self.settings
        policy = ScalingPolicy(
            settings.min_workers,
            settings.max_workers,
            settings.jobs_per_worker,
            settings.scale_down_delay,
            settings.memory_budget,
        )
        living = self.living()
        slots = [worker.slot.read() for worker in living]
        taken = [Taken(slot.busy_since, slot.claims) for slot in slots if slot.state is State.BUSY]
        decision = decide(
            Load(
                due=still_due(self.waiting.due, self.waiting.at, taken),
                busy=len(taken),
                size=len(living),
                target=self.target,
                now=now,
                needed_at=self._needed_at,
                shrunk_at=self._shrunk_at,
                oldest_age=self.waiting.oldest_age,
                drain_rate=self.rate,
                worker_memory=self.largest_worker,
                fixed=self.fixed,
            ),
            policy,
        )
        if decision.needed:
            self._needed_at = now
        if decision.target < self.target:
            self._shrunk_at = now
        self.target, self.reason, self.roof = decision.target, decision.reason, decision.roof
        return decision

    def notice_progress(self) -> list[WorkerProcess]:
        """Check which workers have committed jobs and which must be recycled. Returns those that have become ready."""
        ready = []
        for worker in self.living():
            slot = worker.slot.read()
            committed = slot.done - slot.unsettled
            if worker.notice_ready(slot):
                ready.append(worker)
                self._learn_ready(worker)
            if committed > slot.lost and self.restarts.early_deaths and not worker.template.superseded:
                self.restarts = self.restarts.committed_a_job()
            if worker.cautious and self.suspicion.cautious:
                self.suspicion = self.suspicion.committed(committed)
            if slot.recycle_reason and not worker.stale:
                worker.stale = _WORN[slot.recycle_reason]
        return ready

    def _learn_ready(self, worker: WorkerProcess) -> None:
        if worker.template.superseded:
            self.old_restarts = self.old_restarts.ready()
        else:
            self.restarts, self.old_restarts = self.restarts.ready(), Restarts()
            self.untried = False
        if self.settings.memory_budget is not None:
            self.measure(worker)  # starting more workers depends on it

    def learn(self, ended: ExitReport, worker: WorkerProcess, now: float) -> None:
        """Record that one of its workers has ended."""
        restarts, born = self._restarts_of(worker), worker.asked_at
        if ended.broken or ended.reason == exit_reason.STARTUP:
            restarts = restarts.broken(now, ended.message, born=born)
        elif not ended.expected and ended.reason not in _NOT_ITS_FAULT:
            self.deaths += 1
            restarts = restarts.died(now, early=ended.early, born=born)
            self.suspicion = self.suspicion.died(ended.uncommitted, ended.last_job)
            if ended.charge == "crash" and ended.run[0] == ended.last_job != 0:
                self.suspicion = self.suspicion.accused(ended.last_job)
        self._set_restarts(worker, restarts)
        if not ended.expected:
            self.restarted[ended.reason] += 1
        elif worker.stale and ended.reason != exit_reason.SHUTDOWN:
            self.restarted[_REASONS.get(worker.stale, worker.stale)] += 1

    def fail(self, why: str, now: float, worker: WorkerProcess | None = None) -> bool:
        """Record that a worker could not be started. Returns False for further failures in the same back-off."""
        restarts = self.restarts if worker is None else self._restarts_of(worker)
        if now < restarts.not_before:
            return False
        self._set_restarts(worker, restarts.broken(now, why))
        return True

    def _restarts_of(self, worker: WorkerProcess) -> Restarts:
        return self.old_restarts if worker.template.superseded else self.restarts

    def _set_restarts(self, worker: WorkerProcess | None, restarts: Restarts) -> None:
        if worker is not None and worker.template.superseded:
            self.old_restarts = restarts
        else:
            self.restarts = restarts

    def measure(self, worker: WorkerProcess) -> None:
        """Measure the memory of a worker and the processes it has started."""
        worker.memory.unique = kernel.memory_of_family(worker.pid) or worker.memory.unique
        if not (worker.template.retired or worker.template.superseded):  # not a worker from before a reload
            self.largest_worker = max(self.largest_worker, worker.memory.unique)

    def measure_rate(self, now: float) -> None:
        """Update the rate in jobs per second, from the workers' counters."""
        finished = sum(worker.slot.read().done for worker in self.living())
        if self._rated_at and now > self._rated_at and finished >= self._finished:
            rate = (finished - self._finished) / (now - self._rated_at)
            self.rate += _RATE_WEIGHT * (rate - self.rate)
        self._rated_at, self._finished = now, finished

    def next_device(self, name: str) -> str | None:
        """The device for a new worker: that of the stale worker it replaces, else the least used one."""
        gpus, staying, stale = self.settings.gpus, self.staying(), self.stale()
        beyond = len(staying) + len(stale) - self.target
        left = stale[max(0, beyond) :]  # the first ones already have successors
        device = left[0].device if left and beyond >= 0 else None
        if device not in gpus:
            device = assign(gpus, [worker.device for worker in [*staying, *left]], [self._devices.get(name)])
        if device is not None:
            self._devices[name] = device
        return device

    def next_name(self) -> str:
        taken = {worker.name for worker in self.workers.values()}
        number = 1
        while f"{self.name}-{number}" in taken:
            number += 1
        return f"{self.name}-{number}"

    # For `status`

    def problem(self, now: float) -> str:
        """The current problem; "" if there is none."""
        wrong = self.restarts.problem(now)
        if wrong and self.restarts.failed_setups and self._old_serves():
            return f"new code cannot be loaded: {wrong}; the old code keeps running"
        return wrong

    def is_broken(self, now: float) -> bool:
        """Whether there is a problem and no worker with the old code runs instead."""
        return bool(self.problem(now)) and not self._old_serves()

    def _old_serves(self) -> bool:
        return any(worker.is_ready and worker.template.superseded for worker in self.living())

    def supervisor_status(self, now: float) -> dict[str, Any]:
        """What `status` shows."""
        living = self.living()
        isolated = self.template_deaths.isolated(now)
        alone = (
            f"its templates have died {len(self.template_deaths.at)} times: jobs run one at a time to find the cause"
        )
        return {
            "size": len(living),
            "target": self.target,
            "why": shortened(alone if isolated else self.reason),
            "due": self.waiting.due,
            "oldest_age": round(self.waiting.oldest_age, 3),
            "rate": round(self.rate, 1),
            "problem": self.problem(now),
            "broken": self.is_broken(now),
            "fixed": self.fixed,
            "deaths": self.deaths,
            "restarts": dict(self.restarted),
            "types": list(self.settings.types),
            "capabilities": list(self.settings.capabilities),
            "min_workers": self.settings.min_workers,
            "max_workers": self.settings.max_workers,
            "memory": {w.name: w.memory.unique for w in living if w.memory.unique},
            "devices": {w.name: w.device for w in living if w.device is not None},
            "stale": {w.name: w.stale for w in living if w.stale},
        }

    def close(self) -> None:
        os.close(self.wake)


def _is_idle(worker: WorkerProcess) -> bool:
    return worker.slot.read().state in (State.IDLE, State.STARTING)
