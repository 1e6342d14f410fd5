"""One pool: its code, its workers, how many it should have, and its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from supervisor.config.pool_settings import PoolSettings
from supervisor.domain.memory_shares import Grant, Residency, WorkerSize
from supervisor.domain.scaling import Load, ScalingPolicy, Taken, decide, still_due
from supervisor.supervision.exit_reason import DeathRecord
from supervisor.supervision.release import Releases
from supervisor.supervision.templates import TemplateProcess
from supervisor.supervision.worker_process import WorkerProcess
from supervisor.system.slot import State

_WEIGHT = 0.5  # of the latest measurement of the rate


@dataclass(slots=True)
class Waiting:
    """What the maintainer last measured: due jobs and the oldest's age in seconds, at a monotonic second."""

    due: int = 0
    oldest_age: float = 0.0
    at: float = 0.0


@dataclass(slots=True)
class DrainRate:
    """How fast a pool empties its queue: `jobs` per second, from the workers' counters."""

    jobs: float = 0.0
    measured_at: float = 0.0
    finished: int = 0

    def measure(self, workers: Iterable[WorkerProcess], now: float) -> None:
        """To be called about once a second; `now` is monotonic seconds."""
        finished = sum(worker.slot.read().done for worker in workers)
        if self.measured_at and now > self.measured_at and finished >= self.finished:
            rate = (finished - self.finished) / (now - self.measured_at)
            self.jobs += _WEIGHT * (rate - self.jobs)
        self.measured_at, self.finished = now, finished


@dataclass(slots=True)
class Scale:
    """How many workers a pool should have, why, and what that follows from. Times are monotonic seconds."""

    target: int = 0
    reason: str = "starting"
    fixed: int | None = None  # set by an operator
    waiting: Waiting = field(default_factory=Waiting)
    rate: DrainRate = field(default_factory=DrainRate)
    due: int = 0  # and not taken by a worker, as far as is known
    busy: int = 0
    needed_at: float = 0.0
    shrunk_at: float = 0.0

    def decide(self, settings: PoolSettings, workers: PoolWorkers, now: float) -> None:
        """Count what is due and who is busy, and update the target."""
        most = settings.concurrency
        slots = [worker.slot.read() for worker in workers.living()]
        taken = [Taken(slot.busy_since, slot.claims) for slot in slots if slot.state is State.BUSY]
        places = sum(most - min(slot.claims, most) for slot in slots if slot.places > 1 and slot.together)
        self.due, self.busy = still_due(self.waiting.due, self.waiting.at, taken, places), len(taken)
        load = Load(
            due=self.due,
            busy=self.busy,
            size=sum(not worker.leaving for worker in workers.serving()),
            target=self.target,
            now=now,
            needed_at=self.needed_at,
            shrunk_at=self.shrunk_at,
            oldest_age=self.waiting.oldest_age,
            drain_rate=self.rate.jobs,
            fixed=self.fixed,
            counted=self.waiting.at > 0.0,
        )
        each = max(settings.jobs_per_worker, most)
        policy = ScalingPolicy(settings.min_workers, settings.max_workers, each, settings.scale_down_delay)
        target, self.reason, needed = decide(load, policy)
        self.needed_at = now if needed else self.needed_at
        self.shrunk_at = now if target < self.target else self.shrunk_at
        self.target = target


class PoolWorkers(dict[str, WorkerProcess]):
    """By incarnation, from the request of each to the report of its end."""

    def __init__(self) -> None:
        super().__init__()
        self.unswept: dict[str, TemplateProcess] = {}  # removed ones that may have left processes behind

    def forget_unswept(self, template: TemplateProcess) -> None:
        """The template has ended, and with it all that its workers have left behind."""
        self.unswept = {one: its for one, its in self.unswept.items() if its is not template}

    def living(self) -> list[WorkerProcess]:
        return [worker for worker in self.values() if worker.living]

    def staying(self) -> list[WorkerProcess]:
        """The workers that are neither leaving nor to be replaced."""
        return [worker for worker in self.living() if not worker.leaving and not worker.stale]

    def stale(self) -> list[WorkerProcess]:
        """The workers that are to be replaced and have not been asked to leave. First those that are still being set
        up, which may never be ready; then spares: nobody has to wait for them.
        """
        found = [worker for worker in self.living() if worker.stale and not worker.leaving]
        return sorted(found, key=lambda worker: (worker.is_ready, worker.serving))

    def serving(self) -> list[WorkerProcess]:
        """Those that are no spares."""
        return [worker for worker in self.living() if worker.serving]

    def spare(self) -> int:
        """How many could take over a place now."""
        return sum(worker.is_ready and not worker.serving for worker in self.living())

    def next_name(self, pool: str) -> str:
        taken = {worker.request.name for worker in self.values()}
        number = 1
        while f"{pool}-{number}" in taken:
            number += 1
        return f"{pool}-{number}"


@dataclass(eq=False)
class Pool:
    """Times are monotonic seconds."""

    code: Releases
    wake: int  # the eventfd on which its idle workers sleep
    workers: PoolWorkers = field(default_factory=PoolWorkers)
    deaths: DeathRecord = field(default_factory=DeathRecord)
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
        self.size = WorkerSize(known=self.size.known)
        self.closing = False

    def close_down(self) -> None:
        """It is no longer in the configuration: its workers leave."""
        self.closing = True
        self.code.retire()

    @property
    def needs_canary_worker(self) -> bool:
        """Whether it needs a worker for the canary alone: it was reloaded while it had no job."""
        needed = self.scale.target or self.closing or self.scale.fixed is not None
        return self.code.current.on_trial and self.settings.canary is not None and not needed

    @property
    def desired(self) -> int:
        """How many workers to keep now, spares included."""
        return 1 if self.needs_canary_worker else self.scale.target + self.spares

    @property
    def spares_wanted(self) -> int:
        """How many spares it should have, if there is memory for them: none at zero."""
        return self.settings.spares if self.scale.target > 0 else 0

    @property
    def spares(self) -> int:
        """How many of them are spares: as far as there is memory for them."""
        wanted = self.spares_wanted
        return wanted if self.grant is None else max(0, min(wanted, self.grant.most - self.scale.target))

    @property
    def asleep(self) -> bool:
        """Whether it has no worker and needs none."""
        return not (self.scale.target or self.workers.living())

    @property
    def weighs_workers(self) -> bool:
        """Whether the memory of each of its workers counts for a budget."""
        return self.size.metered or self.settings.memory_budget is not None

    @property
    def places(self) -> int | None:
        """How many more workers may start; None: there is enough memory."""
        return None if self.grant is None else self._places.total()

    def next_device(self) -> str | None:
        """The device for a new worker, which takes a place: that of the stale worker it replaces, else the least used
        one.
        """
        gpus = [gpu for gpu in self.settings.gpus if self.grant is None or self._places[gpu]] or self.settings.gpus
        staying, stale = self.workers.staying(), self.workers.stale()
        surplus = len(staying) + len(stale) - self.desired
        left = stale[max(0, surplus) :]  # the first ones already have successors
        device = left[0].request.device if left and surplus >= 0 else None
        if device not in gpus:
            used = Counter(worker.request.device for worker in [*staying, *left])
            device = min(gpus, key=used.__getitem__, default=None)
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
            self.scale.target, self.scale.reason = 0, "no longer in the configuration"
            return
        self.scale.decide(self.settings, self.workers, now)

    # What is said of it

    @property
    def old_code_serves(self) -> bool:
        """Whether the code from before a reload serves, or would serve the next job."""
        old = self.code.old
        waits = old is not None and old.settings.preloads and not old.failed
        return waits or any(worker.is_ready and not worker.release.current for worker in self.workers.living())

    def problem(self, now: float) -> str:
        """Its current problem; "" if there is none."""
        return self.code.current.problem(now, old_serves=self.old_code_serves)
