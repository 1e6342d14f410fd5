"""The tenants of memory: what each pool uses and asks for, and what it is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

MACHINE = ""
"""The machine's own memory among the budgets; the others are those of devices, and of single pools."""


PERIOD = 600.0  # seconds for which a measurement counts at least


def own_budget(pool: str) -> str:
    """The name of its memory_budget among the budgets."""
    return f"pool {pool}"


class Patience(NamedTuple):
    """Seconds: how long a pool keeps its memory at least, and how long another one's oldest job waits at most."""

    min_residency: float
    max_wait: float


class Need(NamedTuple):
    """Bytes: of one more worker, of the template once for all of them, and of a worker on its device."""

    worker: int
    template: int = 0
    device: int = 0


class RecentPeak(NamedTuple):
    """The largest of the values seen lately. Of two periods, so that a value counts for one period at least, and until
    the next values are seen. Times are monotonic seconds.
    """

    latest: int = 0
    before: int = 0
    began: float = 0.0

    @property
    def value(self) -> int:
        return max(self.latest, self.before)

    def over(self, now: float) -> bool:
        """Whether a new period begins with the next values."""
        return now - self.began >= PERIOD

    def seen(self, values: Iterable[int], now: float) -> RecentPeak:
        most = max(values, default=0)
        if not self.value:
            return RecentPeak(most, 0, now)
        return RecentPeak(most, self.latest, now) if self.over(now) else self._replace(latest=max(self.latest, most))


@dataclass(slots=True)
class WorkerSize:
    """What one worker needs; bytes. All but `known` was measured since the last reload."""

    memory: RecentPeak = field(default_factory=RecentPeak)  # 0: not measured
    has_settled: bool = False  # one was measured behind a job: before its first one, a worker may still grow
    on_device: RecentPeak | None = None  # None: not measured
    metered: bool = False  # the memory of every worker is measured
    known: Need | None = None  # as last measured, perhaps before the reload


class Workers(NamedTuple):
    """The workers of a pool on one device. `used` and `on_device` are the bytes of all of them."""

    staying: int = 0
    leaving: int = 0
    used: int = 0
    on_device: int = 0


class Template(NamedTuple):
    """The templates of one image: bytes, whether they have been told to end, and the bytes of those with old code that
    is kept, because newer code has not worked: they do not end with the last worker.
    """

    used: int = 0
    ending: bool = False
    kept: int = 0


@dataclass(slots=True)
class Grant:
    """What a pool gets, by device: how many of its workers may stay, and how many more may start now.

    `gives_up` counts the workers that leave for others, or its template alone. `without_old_code`: a template with old
    code that was kept must end, too. `crowded`: a worker must leave before its successor starts.
    """

    keep: dict[str, int]
    start: dict[str, int] = field(default_factory=dict)
    reason: str = ""
    gives_up: int = 0
    crowded: bool = False
    without_old_code: bool = False

    @property
    def kept(self) -> int:
        return sum(self.keep.values())

    @property
    def most(self) -> int:
        return self.kept + sum(self.start.values())

    def most_on(self, device: str) -> int:
        return self.keep[device] + self.start.get(device, 0)

    @property
    def unloaded(self) -> bool:
        """Whether it has lost its last worker to others: its template must end, too."""
        return self.gives_up > 0 and not self.most


class Residency(NamedTuple):
    """Since when a pool has its place in memory, and since when it is idle or without one: monotonic seconds.

    `resident`: it has workers, or is to have them again after their deaths; `starting`: none of them has been ready
    yet. `loaded_at` is when the first one was.
    """

    resident: bool = False
    starting: bool = False
    loaded_at: float = -inf
    absent_since: float | None = None
    idle_since: float | None = None

    def seen(self, now: float, *, wanted: int, staying: int, ready: bool, idle: bool) -> Residency:
        """Before a decision. Scaling alone asks for `wanted` workers; `staying` ones have not been told to leave,
        and at least one of them may be `ready`.
        """
        idle_since = (now if self.idle_since is None else self.idle_since) if idle else None
        found = self._replace(idle_since=idle_since)
        if staying and not found.resident:
            found = found._loaded(now)
        if ready and found.starting:
            return found._replace(starting=False, loaded_at=now)
        return found._absent(now) if found.resident and not (staying or wanted) else found

    def decided(self, now: float, grant: Grant) -> Residency:
        """After it."""
        if grant.unloaded and self.resident:
            return self._absent(now)
        return self._loaded(now) if any(grant.start.values()) and not self.resident else self

    def _loaded(self, now: float) -> Residency:
        return self._replace(resident=True, starting=True, loaded_at=now)

    def _absent(self, now: float) -> Residency:
        return self._replace(resident=False, starting=False, absent_since=now)


@dataclass(eq=False, slots=True)
class Tenant:
    """A pool that shares the budgets: what it uses and asks for.

    `workers` has an entry for each of its devices, or one for "" without devices. Pools with the
    same `image` share a template. `spares` are wanted besides the `wanted` workers. There are `due` jobs, of which the
    oldest has waited for `oldest_wait` seconds, and `busy` workers. `replacing`: a worker is to be replaced; `patient`:
    only beside its predecessor, because new code has failed before.

    `need` is a guess until it has been `measured`. Of pools for which it has not, one starts a worker at a time; but
    one that has its own budget only, `alone`, waits for itself only.
    """

    name: str
    wanted: int
    need: Need
    workers: Mapping[str, Workers]
    image: str = ""
    spares: int = 0
    due: int = 0
    busy: int = 0
    oldest_wait: float = 0.0
    residency: Residency = field(default_factory=Residency)
    replacing: bool = False
    patient: bool = False
    measured: bool = True
    alone: bool = False

    @property
    def own(self) -> str:
        """The name of the pool's own budget."""
        return own_budget(self.name)

    @property
    def idle(self) -> bool:
        return not (self.due or self.busy)

    @property
    def staying(self) -> int:
        return sum(there.staying for there in self.workers.values())

    @property
    def needs_first(self) -> bool:
        """Whether it has no worker and its jobs wait for one. One whose last worker has died keeps its place."""
        return self.wanted > 0 and not self.staying and (self.due > 0 or self.residency.resident)

    @property
    def surplus(self) -> int:
        """How many of its workers are spares. Nobody has to wait for them."""
        return 0 if self.replacing else max(0, min(self.spares, self.staying - self.wanted))

    def waited(self, now: float) -> float:
        """For how long its oldest job waits, but only since the pool lost its place: before, it had its turn."""
        since = self.residency.absent_since
        return self.oldest_wait if since is None else min(self.oldest_wait, now - since)

    def used(self, budget: str) -> int:
        """Bytes that its workers use of this budget."""
        if budget in (MACHINE, self.own):
            return sum(there.used for there in self.workers.values())
        return self.workers[budget].on_device if budget in self.workers else 0
