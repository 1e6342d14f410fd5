"""One pool: its workers, its target size and its problems."""

from __future__ import annotations

import os
import time
from collections import Counter
from dataclasses import dataclass, field

from supervisor.config.settings import PoolSettings
from supervisor.domain.beyond import MOST_STARTING, NO_CONNECTION, Beyond
from supervisor.domain.memory import Grant, is_far_over
from supervisor.domain.new_code import new_code_failed
from supervisor.domain.recent_peak import RecentPeak
from supervisor.domain.residency import Residency
from supervisor.domain.scaling import Decision, Load, ScalingPolicy, Taken, decide, still_due
from supervisor.domain.staffing import Leaving, Missing, leaving, missing, spares_kept, within
from supervisor.supervision.drain_rate import DrainRate
from supervisor.supervision.failures import CAUTIOUS, STALE, Failures, plan_replacement
from supervisor.supervision.pool_workers import PoolWorkers, is_idle
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system import kernel
from supervisor.system.slot import RecycleReason, State


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
    workers: PoolWorkers = field(default_factory=PoolWorkers)
    failures: Failures = field(default_factory=Failures)
    waiting: Waiting = field(default_factory=Waiting)
    fixed: int | None = None  # set by an operator
    beyond: Beyond = field(default_factory=Beyond)  # a size above the configured one
    closing: bool = False  # no longer in the configuration
    untried: bool = False  # the new code has not been loaded since a reload
    passed_over: bool = False  # and there was no memory to do so
    unproven: bool = False  # and no worker has been set up with it
    old_waits: bool = False  # a template can fork workers with the code from before the reload
    reloaded_at: float = 0.0
    target: int = 0
    reason: str = "starting"
    roof: int | None = None
    rate: DrainRate = field(default_factory=DrainRate)
    size_of_worker: RecentPeak = field(default_factory=RecentPeak)  # bytes; 0: not measured
    size_has_settled: bool = False  # one was measured behind a job: before its first one, a worker may still grow
    size_on_device: RecentPeak | None = None  # None: not measured
    metered: bool = False  # the memory of every worker is measured
    due: int = 0  # and not taken by a worker, as far as is known
    busy: int = 0
    residency: Residency = field(default_factory=Residency)
    grant: Grant | None = None  # of the memory that all pools share; None: there is enough for all

    def __post_init__(self) -> None:
        self._places: Counter[str] = Counter()  # where more workers may start, by device
        self._needed_at = self._shrunk_at = 0.0

    @property
    def name(self) -> str:
        return self.settings.name

    def reconfigure(self, settings: PoolSettings) -> None:
        """Apply a reload: workers with new code or another model may differ in size, and old failures do not count."""
        self.settings = settings
        self.size_of_worker, self.size_has_settled, self.size_on_device = RecentPeak(), False, None
        self.failures.reloaded()
        self.untried, self.passed_over, self.unproven, self.reloaded_at = True, False, True, time.monotonic()

    @property
    def desired(self) -> int:
        """How many workers to keep now, spares included."""
        return 1 if proves_itself(self) else self.target + self.spares

    @property
    def spares(self) -> int:
        """How many of them are spares: as far as there is memory for them."""
        wanted = spares_wanted(self)
        return wanted if self.grant is None else max(0, min(wanted, self.grant.most - self.target))

    @property
    def asleep(self) -> bool:
        """Whether it has no worker and needs none."""
        return not (self.target or self.workers.living())

    def missing(self, now: float, *, unproven: bool) -> Missing:
        """How many workers to start now. `unproven`: there is old code, and no worker runs the new code yet.

        In a pool without workers, new code that could be loaded comes first: a reload has said that it is in use.
        """
        failures, counts = self.failures, self.workers.counts(self.desired)
        unproven = unproven and (self.untried or self.passed_over or bool(failures.restarts.failed_setups))
        wanted = missing(
            counts,
            failed=bool(failures.restarts.failed_setups),
            unproven=unproven,
            isolated=failures.template_deaths.isolated(now),
        )
        if proves_itself(self):
            wanted = wanted._replace(old=0)
        if self._is_beyond:
            wanted = wanted._replace(new=min(wanted.new, max(0, MOST_STARTING - counts.starting)))
        wanted = failures.allow(wanted, now)
        if self.grant is not None:
            wanted = within(wanted, self._places.total(), old_first=bool(failures.restarts.failed_setups))
        return wanted

    def next_device(self, name: str) -> str | None:
        """The device for a new worker."""
        gpus = [gpu for gpu in self.settings.gpus if self.grant is None or self._places[gpu]]
        device = self.workers.next_device(name, gpus or self.settings.gpus, self.desired)
        self._places[device or ""] -= 1
        return device

    @property
    def _is_beyond(self) -> bool:
        return self.fixed is not None and self.fixed > self.settings.max_workers

    def to_drain(self) -> list[WorkerProcess]:
        """The workers that should drain now."""
        if proves_itself(self):
            return [worker for worker in self.workers.stale() if is_idle(worker)]
        counts = self.workers.counts(self.desired)
        found: Leaving = leaving(counts, self.roof, fixed=self.fixed is not None or self.closing)
        if self.grant is not None and (evicted := self._evicted(self.grant)):
            return evicted
        stale = self.workers.stale()
        if not stale and not any(found):
            return []
        far_over = [worker for worker in stale if self._is_far_over(worker)]
        youngest = sorted(self.workers.candidates(self.target), key=lambda worker: -worker.asked_at)
        idle = [worker for worker in youngest if is_idle(worker)]
        largest = sorted(youngest, key=lambda worker: (not is_idle(worker), -worker.memory.unique))
        anyone = largest if self.fixed is None else [*idle, *(w for w in youngest if w not in idle)]
        chosen = [*far_over, *stale[: found.stale], *idle[: found.idle], *anyone[: found.anyone]]
        return list(dict.fromkeys(chosen))

    def _is_far_over(self, worker: WorkerProcess) -> bool:
        """As measured with a tick, or by itself after a job: it may grow by much between two ticks."""
        limit = self.settings.max_memory
        measured = limit is not None and is_far_over(worker.memory.unique, limit)
        return measured or worker.slot.read().recycle_reason is RecycleReason.FAR_LARGE

    def _evicted(self, grant: Grant) -> list[WorkerProcess]:
        """Those for which there is no memory: on each device, stale ones, spares, idle ones, the youngest first."""
        if grant.crowded and not any(worker.leaving for worker in self.workers.living()):
            return self.workers.stale()[:1]
        chosen = []
        for device in grant.keep:
            there = [w for w in self.workers.living() if not w.leaving and (w.device or "") == device]
            surplus = len(there) - grant.most_on(device)
            if surplus > 0:
                there.sort(key=lambda one: (not one.stale, one.serving, not is_idle(one), -one.asked_at))
                chosen += there[:surplus]
        return chosen

    def take(self, grant: Grant | None) -> None:
        """Keep to the memory that it has been given; None: there is enough for all."""
        self.grant = grant
        self._places = Counter() if grant is None else Counter(grant.start)
        if grant is not None and (self.target > grant.most or (proves_itself(self) and not grant.most)):
            self.target, self.reason = min(self.target, grant.most), grant.reason

    @property
    def next_try(self) -> float | None:
        """When its back-off ends; None if there is none."""
        if self.closing or len(self.workers.living()) >= self.desired:
            return None
        return self.failures.next_try

    # Decisions and their inputs

    def decide(self, now: float) -> Decision:
        """Update the target size and return the decision."""
        if self.closing:
            self.target, self.reason, self.roof = 0, "no longer in the configuration", None
            return Decision(0, self.reason, needed=False)
        s = self.settings
        each = max(s.jobs_per_worker, s.concurrency)
        policy = ScalingPolicy(s.min_workers, s.max_workers, each, s.scale_down_delay, s.memory_budget)
        living = self.workers.living()
        slots = [worker.slot.read() for worker in living]
        taken = [Taken(slot.busy_since, slot.claims) for slot in slots if slot.state is State.BUSY]
        places = sum(
            s.concurrency - min(slot.claims, s.concurrency) for slot in slots if slot.places > 1 and slot.together
        )
        starting = [slot for slot in slots if slot.state is State.STARTING] if self._is_beyond else []
        refused = sum(NO_CONNECTION in slot.text for slot in starting)
        self.beyond = self.beyond.seen(sum(w.is_ready for w in living), refused, s.max_workers, now)
        self.due, self.busy = still_due(self.waiting.due, self.waiting.at, taken, places), len(taken)
        decision = decide(
            Load(
                due=self.due,
                busy=self.busy,
                size=self.workers.remaining(self.spares),
                target=self.target,
                now=now,
                needed_at=self._needed_at,
                shrunk_at=self._shrunk_at,
                oldest_age=self.waiting.oldest_age,
                drain_rate=self.rate.jobs,
                worker_memory=self.size_of_worker.value,
                fixed=self.fixed,
                counted=self.waiting.at > 0.0,
            ),
            policy,
        )
        if self._is_beyond and decision.target > self.beyond.most:
            why = f"{decision.reason}; the database takes no more connections"
            decision = Decision(int(self.beyond.most), why, needed=True)
        if decision.needed:
            self._needed_at = now
        if decision.target < self.target:
            self._shrunk_at = now
        self.target, self.reason, self.roof = decision.target, decision.reason, decision.roof
        return decision

    def notice_progress(self, now: float) -> list[WorkerProcess]:
        """Look at all workers. Returns those that have become ready."""
        return [worker for worker in self.workers.living() if look_at(self, worker, now)]

    def measure(self, worker: WorkerProcess) -> None:
        """Measure the memory of a worker and the processes it has started."""
        unique = kernel.memory_of_family(worker.pid) or kernel.resident_of_family(worker.pid)  # some may not be read
        worker.memory.unique = unique or worker.memory.unique
        if is_typical(worker):
            now = time.monotonic()
            self.size_has_settled = self.size_has_settled or worker.memory.has_settled
            # Those without jobs are not measured again, but count.
            measured = filter(is_typical, self.workers.living()) if self.size_of_worker.over(now) else [worker]
            self.size_of_worker = self.size_of_worker.seen((one.memory.unique for one in measured), now)

    def problem(self, now: float) -> str:
        """The current problem; "" if there is none."""
        restarts = self.failures.restarts
        wrong = restarts.problem(now)
        if wrong and restarts.failed_setups and (old_serves(self) or (self.unproven and self.reloaded_at)):
            return new_code_failed(wrong, old_serves=old_serves(self))
        return wrong

    def close(self) -> None:
        os.close(self.wake)


def look_at(pool: Pool, worker: WorkerProcess, now: float) -> bool:
    """Note what a worker has done since the last look; the last one is after its end. Returns whether it has become
    ready.
    """
    slot = worker.slot.read()
    became_ready = worker.notice_ready(slot)
    if became_ready:
        _learn_ready(pool, worker)
    pool.failures.committed(worker, slot.done - slot.unsettled, now, lost=slot.lost)
    if slot.recycle_reason:
        plan_replacement(worker, STALE[slot.recycle_reason])
    elif worker.living and pool.grant is None and pool.failures.too_cautious(worker, now):
        plan_replacement(worker, CAUTIOUS)  # not where memory is scarce: nobody would work until its successor is ready
    return became_ready


def _learn_ready(pool: Pool, worker: WorkerProcess) -> None:
    pool.failures.ready(worker)
    pool.untried = pool.untried and worker.template.superseded
    pool.passed_over = pool.passed_over and worker.template.superseded
    pool.unproven = pool.unproven and worker.template.superseded
    if worker.running and (pool.metered or pool.settings.memory_budget is not None):
        pool.measure(worker)  # starting more workers depends on it


def is_typical(worker: WorkerProcess) -> bool:
    """Before the end of its set-up it is smaller, and one from before a reload may differ."""
    return worker.is_ready and not (worker.template.retired or worker.template.superseded)


def proves_itself(pool: Pool) -> bool:
    """Whether it needs a worker for the canary alone: it was reloaded while it had no job."""
    needed = pool.target or pool.closing or pool.fixed is not None
    return pool.untried and pool.settings.canary is not None and not needed


def is_untried(pool: Pool) -> bool:
    """Whether its new code is to be loaded without a worker, to see whether that works."""
    return pool.untried and pool.asleep and not proves_itself(pool)


def old_serves(pool: Pool) -> bool:
    """Whether the code from before a reload serves, or would serve the next job."""
    return pool.workers.old_serve() or (pool.old_waits and not pool.failures.old_restarts.failed_setups)


def proven_by_image(pool: Pool) -> bool:
    """Whether its new code has worked as soon as a template has it: with the set-up, and nothing else is tried."""
    return pool.settings.preload_setup and pool.settings.canary is None and pool.settings.warmup is None


def excess(pool: Pool) -> str:
    """What is wrong with the size that an operator has set; "" if nothing is."""
    if not pool._is_beyond or pool.beyond == Beyond():
        return ""
    return (
        f"an operator set {pool.fixed} workers (configured: {pool.settings.max_workers}), and the database takes "
        f"connections of no more than {pool.target}; `supervisor scale {pool.name} auto` undoes that"
    )


def spares_configured(pool: Pool) -> int:
    """How many it should have, whatever the memory allows."""
    settings = pool.settings
    beyond = pool.fixed is not None and pool.fixed > settings.max_workers
    return 0 if beyond or pool.target <= 0 else settings.spares


def spares_wanted(pool: Pool) -> int:
    """How many, if there is memory for them beside those of other pools."""
    measured = pool.settings.memory_budget is None or pool.size_of_worker.value > 0
    return spares_kept(spares_configured(pool), pool.target, pool.roof, measured=measured)
