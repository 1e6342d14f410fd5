"""One pool: its workers, how many there should be, and which are on their way out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from supervisor.config.settings import PoolSettings
from supervisor.domain.devices import assign
from supervisor.domain.restart import Restarts
from supervisor.domain.scaling import Decision, Load, ScalingPolicy, decide
from supervisor.maintenance.maintainer import Ward
from supervisor.maintenance.renewer import LockTimes
from supervisor.maintenance.reviver import SecondChance
from supervisor.processes import autopsy
from supervisor.processes.autopsy import Finding
from supervisor.processes.worker_process import WorkerProcess
from supervisor.store.base import Wanted
from supervisor.system import kernel
from supervisor.system.scoreboard import State, Worn

_WORN = {
    Worn.OLD: "near max_jobs_per_worker",
    Worn.LARGE: "over max_memory",
    Worn.LEAKY: "many files left open by its jobs",
    Worn.CHANGED: "its process was changed by a job",
}
_REASONS = {
    _WORN[Worn.OLD]: "max_jobs_per_worker",
    _WORN[Worn.LARGE]: "max_memory",
    _WORN[Worn.LEAKY]: "open_files",
    _WORN[Worn.CHANGED]: "process_changed",
}
_RATE_WEIGHT = 0.5  # of the latest second in the drain rate


@dataclass(slots=True)
class Waiting:
    """What the maintainer last measured: due jobs and the oldest's age in seconds."""

    due: int = 0
    oldest_age: float = 0.0


@dataclass(eq=False)
class Pool:
    """Decides; the supervisor acts. Times are monotonic seconds."""

    settings: PoolSettings
    wake: int  # the eventfd on which its idle workers sleep
    workers: dict[str, WorkerProcess] = field(default_factory=dict)
    restarts: Restarts = field(default_factory=Restarts)
    waiting: Waiting = field(default_factory=Waiting)
    fixed: int | None = None  # an operator's wish
    closing: bool = False  # no longer in the configuration
    target: int = 0
    reason: str = "starting"
    rate: float = 0.0
    deaths: int = 0
    restarted: Counter[str] = field(default_factory=Counter)  # workers to be replaced, by why
    largest_worker: int = 0  # bytes, the most that was ever measured of one

    def __post_init__(self) -> None:
        self._needed_at = self._shrunk_at = self._rated_at = 0.0
        self._finished = 0
        self._devices: dict[str, str] = {}  # each name's latest

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def image(self) -> tuple[Any, ...]:
        """Pools that agree in this share one template: handler module, environment, preload, start and threads,
        and with preload_setup all that the set-up is told.
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
            bool(settings.gpus),  # these ask more of an image
            *told,
        )

    def reconfigure(self, settings: PoolSettings) -> None:
        """A reload: with other code or another model, workers may be of another size."""
        self.settings = settings
        self.largest_worker = 0

    def ward(self) -> Ward:
        """What the maintainer must know of it."""
        settings = self.settings
        wanted = Wanted(settings.types, " ".join(settings.capabilities))
        locks = LockTimes(settings.lock_time, settings.heartbeat_timeout)
        chance = SecondChance(wanted, settings.retry_failed_every, settings.retry_failed_times)
        return Ward(wanted, self.wake, locks, chance)

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers.values() if worker.dead_at is None]

    def staying(self) -> list[WorkerProcess]:
        """Those that are neither leaving nor to be replaced."""
        return [worker for worker in self.living() if not worker.draining and not worker.stale]

    def decide(self, now: float) -> Decision:
        """Set the target size anew and return the decision."""
        if self.closing:
            self.target, self.reason = 0, "no longer in the configuration"
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
        decision = decide(
            Load(
                due=self.waiting.due,
                busy=sum(worker.state is State.BUSY for worker in living),
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
        self.target, self.reason = decision.target, decision.reason
        return decision

    def missing(self, now: float) -> int:
        """How many workers to start now. Replacements come one at a time, and before their predecessors go.

        A dead worker keeps its place until it is known why it died: that may say that another would die, too.
        """
        if now < self.restarts.not_before:
            return 0
        staying = len(self.staying())
        stale = [worker for worker in self.living() if worker.stale and not worker.draining]
        unexplained = len(self.workers) - len(self.living())
        missing = self.target - staying - len(stale) - unexplained
        starting = any(not worker.was_ready for worker in self.staying())
        if missing > 0 and self.restarts.failed_setups:
            return 0 if starting or unexplained else 1  # a single one tries
        if missing > 0:
            return missing
        return 1 if stale and staying < self.target and not starting else 0

    def leavers(self) -> Iterator[WorkerProcess]:
        """Who should drain now: replaced ones whose successor is ready, and whoever is too many, idle first."""
        staying = self.staying()
        stale = [worker for worker in self.living() if worker.stale and not worker.draining]
        ready = sum(worker.was_ready for worker in staying)
        if stale and (ready + len(stale) > self.target):
            yield stale[0]
        surplus = len(staying) - max(self.target, 0)
        if surplus > 0:
            # A busy one is never asked to make room; it will be idle some day.
            idle = [w for w in staying if w.state in (State.IDLE, State.STARTING) or self.fixed is not None]
            yield from sorted(idle, key=lambda worker: -worker.asked_at)[:surplus]

    @property
    def wants_restart(self) -> bool:
        """Whether it waits for its back-off to pass."""
        return bool(self.restarts.not_before) and len(self.living()) < self.target and not self.closing

    def notice_progress(self, now: float) -> None:
        """See who has become ready, who has worked, and who is worn."""
        for worker in self.living():
            slot = worker.slot.read()
            if not worker.was_ready and slot.state in (State.IDLE, State.BUSY):
                worker.was_ready = True
                self.restarts = self.restarts.ready()
                if self.settings.memory_budget is not None:
                    self.measure(worker)  # others wait for it
            if slot.done > slot.lost and self.restarts.early_deaths:
                self.restarts = self.restarts.finished_a_job()
            if slot.worn and not worker.stale:
                worker.stale = _WORN[slot.worn]

    def learn(self, finding: Finding, *, early: bool, born: float, now: float) -> None:
        """A worker asked for at `born` has ended; `early` says that it had finished no job."""
        if finding.broken or finding.reason == autopsy.STARTUP:
            self.restarts = self.restarts.broken(now, finding.message, born=born)
        elif not finding.expected and finding.reason not in (autopsy.TEMPLATE, autopsy.UNWATCHED):
            self.deaths += 1
            self.restarts = self.restarts.died(now, early=early, born=born)

    def count_restart(self, finding: Finding, stale: str) -> None:
        """A worker has ended for one reason or another than that there were too many, or that we leave."""
        if not finding.expected:
            self.restarted[finding.reason] += 1
        elif stale and finding.reason != autopsy.SHUTDOWN:
            self.restarted[_REASONS.get(stale, stale)] += 1

    def measure(self, worker: WorkerProcess) -> None:
        """How much memory a worker has, and what it has started."""
        worker.memory = kernel.memory_of_family(worker.pid)
        if not worker.launcher.retired:  # else it is one of before a reload
            self.largest_worker = max(self.largest_worker, worker.memory)

    def measure_rate(self, now: float) -> None:
        """Jobs a second, from what the workers have counted."""
        finished = sum(worker.slot.read().done for worker in self.living())
        if self._rated_at and now > self._rated_at and finished >= self._finished:
            rate = (finished - self._finished) / (now - self._rated_at)
            self.rate += _RATE_WEIGHT * (rate - self.rate)
        self._rated_at, self._finished = now, finished

    def next_device(self, name: str) -> str | None:
        """For the worker to come: that of the stale one which it replaces, else the one with the fewest workers."""
        gpus, staying = self.settings.gpus, self.staying()
        stale = [worker for worker in self.living() if worker.stale and not worker.draining]
        beyond = len(staying) + len(stale) - self.target
        left = stale[max(0, beyond) :]  # the first ones have their successors already
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

    def bulletin(self) -> dict[str, Any]:
        """What `status` shows."""
        return {
            "size": len(self.living()),
            "target": self.target,
            "why": self.reason,
            "due": self.waiting.due,
            "oldest_age": round(self.waiting.oldest_age, 3),
            "rate": round(self.rate, 1),
            "problem": self.restarts.problem,
            "fixed": self.fixed,
            "deaths": self.deaths,
            "restarts": dict(self.restarted),
            "types": list(self.settings.types),
            "capabilities": list(self.settings.capabilities),
            "min_workers": self.settings.min_workers,
            "max_workers": self.settings.max_workers,
            "memory": {w.name: w.memory for w in self.living() if w.memory},
            "devices": {w.name: w.device for w in self.living() if w.device is not None},
            "stale": {w.name: w.stale for w in self.living() if w.stale},
        }

    def close(self) -> None:
        os.close(self.wake)
