"""Memory that pools share: what each asks for, what it gets, and the bytes between."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

MACHINE = ""
"""The machine's own memory among the budgets; the others are those of devices."""

_FAR_OVER = 1.1  # times max_memory


class Patience(NamedTuple):
    """Seconds: how long a pool keeps its memory at least, and how long another one's oldest job waits at most."""

    min_residency: float
    max_wait: float


class Need(NamedTuple):
    """Bytes: of one more worker, of the template once for all of them, and of a worker on its device."""

    worker: int
    template: int = 0
    device: int = 0


class Crew(NamedTuple):
    """The workers of a pool on one device. `used` and `on_device` are the bytes of all of them."""

    staying: int = 0
    leaving: int = 0
    used: int = 0
    on_device: int = 0


class Template(NamedTuple):
    """The templates of one image: bytes, whether they have been told to end, and the bytes of those with old code that
    is kept, because newer code has not worked: they do not end with the last worker. One that is `loading` its code,
    and perhaps a model, counts as it is expected, besides those bytes.
    """

    used: int = 0
    ending: bool = False
    kept: int = 0
    loading: bool = False


class Demand(NamedTuple):
    """What one pool asks for. Times are monotonic seconds.

    `crews` has an entry for each of its devices, or one for "" without devices. `need` is None until it has been
    measured. Pools with the same `image` share a template. `loaded_at` is when its first worker was ready,
    `absent_since` when it lost its last one; `resident`: it has not been unloaded since; `starting`: none of its
    workers has been set up since. `spares` are wanted besides. `replacing`: a worker is to be replaced; `patient`: only
    beside its predecessor, because new code has failed before. `untried`: it has no worker, and its new code is to be
    loaded once in a template.
    """

    name: str
    wanted: int
    need: Need | None
    crews: Mapping[str, Crew]
    image: str = ""
    due: int = 0
    busy: int = 0
    oldest_wait: float = 0.0
    idle_since: float | None = None
    youngest_idle: float | None = None
    loaded_at: float | None = None
    absent_since: float | None = None
    resident: bool = False
    starting: bool = False
    spares: int = 0
    replacing: bool = False
    patient: bool = False
    untried: bool = False


class CodeTrial(Enum):
    """Whether new code can be loaded in a template only to see whether it works."""

    NOW = "there is room for it"
    LATER = "some is being freed, or it is the turn of another pool"
    INSTEAD = "there is room for it in the place of the old code"
    NEVER = "others have the memory"


class Grant(NamedTuple):
    """What a pool gets, by device: how many of its workers may stay, and how many more may start now.

    `unloaded`: its template must end, too; `without_old_code`: also one with old code that was kept. `crowded`: a
    worker must leave before its successor starts. `trial` is for a pool without workers after a reload.
    """

    keep: Mapping[str, int]
    start: Mapping[str, int]
    reason: str = ""
    unloaded: bool = False
    crowded: bool = False
    without_old_code: bool = False
    trial: CodeTrial = CodeTrial.NOW

    @property
    def most(self) -> int:
        return sum(map(self.most_on, self.keep))

    def most_on(self, device: str) -> int:
        return self.keep[device] + self.start.get(device, 0)


def is_far_over(used: int, limit: int) -> bool:
    """Whether a worker is so far over max_memory that it leaves before its successor is ready."""
    return used > limit * _FAR_OVER


def by_resource(device: str, machine: float, on_device: float) -> dict[str, float]:
    return {MACHINE: machine} | ({device: on_device} if device != MACHINE else {})


def per_worker(device: str, crew: Crew) -> dict[str, float]:
    """What the end of one worker frees, as if all were alike."""
    workers = max(1, crew.staying + crew.leaving)
    return by_resource(device, crew.used / workers, crew.on_device / workers)


def of_bytes(used: float, budget: int) -> str:
    """`3.1 of 6 GiB`."""
    unit, _ = _unit(budget)
    return f"{size(used, budget).removesuffix(unit)}of {size(budget)}"


def size(value: float, like: float | None = None) -> str:
    """`3.1 GiB`; in the same unit as another number of bytes."""
    unit, scale = _unit(value if like is None else like)
    return f"{value / scale:.1f}".removesuffix(".0") + f" {unit}"


def _unit(value: float) -> tuple[str, int]:
    return ("GiB", 1 << 30) if value >= 1 << 30 else ("MiB", 1 << 20)


def name_of(resource: str) -> str:
    return "memory" if resource == MACHINE else f"memory of device {resource}"
