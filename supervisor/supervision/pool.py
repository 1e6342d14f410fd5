"""One pool: its code, its workers, how many it should have, and its problems."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.config.settings import PoolSettings
from supervisor.domain.memory import Grant
from supervisor.domain.recent_peak import RecentPeak
from supervisor.domain.residency import Residency
from supervisor.domain.scaling import Load, ScalingPolicy, Taken, decide, spares_kept, still_due
from supervisor.supervision.failures import CAUTIOUS, STALE, Failures, is_cautious_enough, plan_replacement
from supervisor.supervision.pool_workers import PoolWorkers
from supervisor.supervision.release import ImageTrial, Releases
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel
from supervisor.system.slot import State

_WEIGHT = 0.5  # of the latest measurement of the rate


@dataclass(slots=True)
class Waiting:
    """What the maintainer last measured: due jobs and the oldest's age in seconds, at a monotonic second."""

    due: int = 0
    oldest_age: float = 0.0
    at: float = 0.0


class DrainRate:
    """How fast a pool empties its queue: `jobs` per second, from the workers' counters."""

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


@dataclass(slots=True)
class Scale:
    """How many workers a pool should have, why, and what that follows from. Times are monotonic seconds."""

    target: int = 0
    reason: str = "starting"
    roof: int | None = None  # what memory_budget allows
    fixed: int | None = None  # set by an operator
    waiting: Waiting = field(default_factory=Waiting)
    rate: DrainRate = field(default_factory=DrainRate)
    due: int = 0  # and not taken by a worker, as far as is known
    busy: int = 0
    _needed_at: float = 0.0
    _shrunk_at: float = 0.0

    def look(self, workers: Iterable[WorkerProcess], concurrency: int) -> None:
        """Count what is due and who is busy."""
        slots = [worker.slot.read() for worker in workers]
        taken = [Taken(slot.busy_since, slot.claims) for slot in slots if slot.state is State.BUSY]
        places = sum(concurrency - min(slot.claims, concurrency) for slot in slots if slot.places > 1 and slot.together)
        self.due, self.busy = still_due(self.waiting.due, self.waiting.at, taken, places), len(taken)

    def decide(self, policy: ScalingPolicy, size: int, worker_memory: int, now: float) -> None:
        """Update the target of a pool with so many workers that are not leaving."""
        load = Load(
            due=self.due,
            busy=self.busy,
            size=size,
            target=self.target,
            now=now,
            needed_at=self._needed_at,
            shrunk_at=self._shrunk_at,
            oldest_age=self.waiting.oldest_age,
            drain_rate=self.rate.jobs,
            worker_memory=worker_memory,
            fixed=self.fixed,
            counted=self.waiting.at > 0.0,
        )
        decision = decide(load, policy)
        if decision.needed:
            self._needed_at = now
        if decision.target < self.target:
            self._shrunk_at = now
        self.target, self.reason, self.roof = decision.target, decision.reason, decision.roof


@dataclass(slots=True)
class WorkerSize:
    """What one worker needs, as measured since the last reload; bytes."""

    memory: RecentPeak = field(default_factory=RecentPeak)  # 0: not measured
    has_settled: bool = False  # one was measured behind a job: before its first one, a worker may still grow
    on_device: RecentPeak | None = None  # None: not measured
    metered: bool = False  # the memory of every worker is measured


@dataclass(eq=False)
class Pool:
    """Times are monotonic seconds."""

    code: Releases
    wake: int  # the eventfd on which its idle workers sleep
    workers: PoolWorkers = field(default_factory=PoolWorkers)
    failures: Failures = field(default_factory=Failures)
    scale: Scale = field(default_factory=Scale)
    size: WorkerSize = field(default_factory=WorkerSize)
    closing: bool = False  # no longer in the configuration
    residency: Residency = field(default_factory=Residency)
    grant: Grant | None = None  # of the memory that all pools share; None: there is enough for all

    def __post_init__(self) -> None:
        self._places: Counter[str] = Counter()  # where more workers may start, by device

    @property
    def settings(self) -> PoolSettings:
        return self.code.current.settings

    @property
    def name(self) -> str:
        return self.settings.name

    def reload(self, settings: PoolSettings, now: float) -> None:
        """Begin a new release. Its workers may differ in size."""
        self.code.begin(settings, now)
        self.size = WorkerSize()
        self.closing = False

    def close_down(self) -> None:
        """It is no longer in the configuration: its workers leave."""
        self.closing = True
        self.code.retire()

    @property
    def needs_canary_worker(self) -> bool:
        """Whether it needs a worker for the canary alone: it was reloaded while it had no job."""
        needed = self.scale.target or self.closing or self.scale.fixed is not None
        return self.code.current.trial is ImageTrial.DUE and self.settings.canary is not None and not needed

    @property
    def old_serves(self) -> bool:
        """Whether the code from before a reload serves, or would serve the next job."""
        old = self.code.old
        waits = old is not None and old.settings.preloads and not old.failed
        return waits or any(worker.is_ready and not worker.release.current for worker in self.workers.living())

    def problem(self, now: float) -> str:
        """The current problem; "" if there is none."""
        return self.code.current.problem(now, old_serves=self.old_serves)

    @property
    def desired(self) -> int:
        """How many workers to keep now, spares included."""
        return 1 if self.needs_canary_worker else self.scale.target + self.spares

    @property
    def spares(self) -> int:
        """How many of them are spares: as far as there is memory for them."""
        wanted = spares_wanted(self)
        return wanted if self.grant is None else max(0, min(wanted, self.grant.most - self.scale.target))

    @property
    def asleep(self) -> bool:
        """Whether it has no worker and needs none."""
        return not (self.scale.target or self.workers.living())

    @property
    def places(self) -> int | None:
        """How many more workers may start; None: there is enough memory."""
        return None if self.grant is None else self._places.total()

    def next_device(self, name: str) -> str | None:
        """The device for a new worker, which takes a place."""
        gpus = [gpu for gpu in self.settings.gpus if self.grant is None or self._places[gpu]]
        device = self.workers.next_device(name, gpus or self.settings.gpus, self.desired)
        self._places[device or ""] -= 1
        return device

    def take(self, grant: Grant | None) -> None:
        """Keep to the memory that it has been given; None: there is enough for all."""
        self.grant = grant
        self._places = Counter() if grant is None else Counter(grant.start)
        if grant is not None and (self.scale.target > grant.most or (self.needs_canary_worker and not grant.most)):
            self.scale.target, self.scale.reason = min(self.scale.target, grant.most), grant.reason

    def decide(self, now: float) -> None:
        """Update the target size."""
        if self.closing:
            self.scale.target, self.scale.reason, self.scale.roof = 0, "no longer in the configuration", None
            return
        s = self.settings
        each = max(s.jobs_per_worker, s.concurrency)
        policy = ScalingPolicy(s.min_workers, s.max_workers, each, s.scale_down_delay, s.memory_budget)
        self.scale.look(self.workers.living(), s.concurrency)
        self.scale.decide(policy, self.workers.remaining(self.spares), self.size.memory.value, now)

    def close(self) -> None:
        os.close(self.wake)


def look_at(pool: Pool, worker: WorkerProcess, now: float) -> bool:
    """Note what a worker has done since the last look; the last one is after its end. Returns whether it has become
    ready.
    """
    slot = worker.slot.read()
    became_ready = worker.notice_ready(slot)
    if became_ready:
        worker.template.proven.add(pool.name)
        worker.release.restarts = worker.release.restarts.ready()
        pool.code.works(worker.release)
        if worker.running and (pool.size.metered or pool.settings.memory_budget is not None):
            measure(pool, worker)  # starting more workers depends on it
    committed = slot.done - slot.unsettled
    pool.failures.committed(worker, committed, lost=slot.lost)
    if slot.recycle_reason:
        plan_replacement(worker, STALE[slot.recycle_reason])
    elif worker.living and pool.grant is None and is_cautious_enough(worker, committed, now):
        plan_replacement(worker, CAUTIOUS)  # not where memory is scarce: nobody would work until its successor is ready
    return became_ready


def measure(pool: Pool, worker: WorkerProcess) -> None:
    """Measure the memory of a worker and the processes it has started."""
    unique = kernel.memory_of_family(worker.pid) or kernel.resident_of_family(worker.pid)  # some may not be read
    worker.memory.unique = unique or worker.memory.unique
    if is_typical(worker):
        now, size = time.monotonic(), pool.size
        size.has_settled = size.has_settled or worker.memory.has_settled
        # Those without jobs are not measured again, but count.
        measured = filter(is_typical, pool.workers.living()) if size.memory.over(now) else [worker]
        size.memory = size.memory.seen((one.memory.unique for one in measured), now)


def is_typical(worker: WorkerProcess) -> bool:
    """Before the end of its set-up it is smaller, and one from before a reload may differ."""
    return worker.is_ready and worker.release.current


def spares_configured(pool: Pool) -> int:
    """How many it should have, whatever the memory allows."""
    return pool.settings.spares if pool.scale.target > 0 else 0


def spares_wanted(pool: Pool) -> int:
    """How many, if there is memory for them beside those of other pools."""
    measured = pool.settings.memory_budget is None or pool.size.memory.value > 0
    return spares_kept(spares_configured(pool), pool.scale.target, pool.scale.roof, measured=measured)
