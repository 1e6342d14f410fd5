"""What is told of workers, pools, types and supervisors at one moment: values alone.

Times are seconds, memory is bytes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from supervisor.domain.history import QUIET, Hour

COUNT_LIMIT = 10_000  # due jobs of a pool are counted no further
MOST_TYPES = 200  # that are told one by one; what else there is, is added up
MOST_NAMED = 50  # types without a pool, and paused ones, by name
MOST_SCHEDULES = 200
NAME = 200  # characters of a name from a row; ours have 100 at most
SENTENCE = 1000  # characters of a reason that a supervisor posts


def text_of(value: object, limit: int = NAME) -> str:
    """A text from a row or a supervisor's status, which any program may have written, of a bounded length."""
    text = value[: 4 * limit].decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= limit else f"{text[:limit]}…"


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One worker. `running_for` and `beat_age` are seconds, `memory` is what it shares with nobody."""

    name: str
    pool: str
    supervisor: int
    pid: int
    state: str
    job: int | None
    running_for: float | None
    progress: float | None
    text: str
    claims: int
    done: int
    memory: int | None
    beat_age: float
    leaving: str | None
    device: str | None


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool of one supervisor. `due` is counted up to COUNT_LIMIT; `rate` is jobs a second.

    `problem` says what is wrong, `broken` that no older code makes up for it.
    `paused` are those of its types whose jobs are not started; `memory` is what its workers have altogether.
    """

    name: str
    supervisor: int
    types: list[str]
    capabilities: list[str]
    size: int
    target: int
    why: str
    min_workers: int
    max_workers: int
    fixed: int | None
    due: int
    oldest_age: float | None
    next_due_in: float | None
    rate: float
    deaths: int
    problem: str | None
    paused: list[str]
    memory: int
    broken: bool = False

    @property
    def remark(self) -> str:
        """The one thing most worth knowing: what is wrong, what is paused, or why it has this size."""
        if self.problem:
            return f"BROKEN: {self.problem}" if self.broken else self.problem
        if not self.paused:
            return self.why
        return "paused" if len(self.paused) == len(self.types) else f"paused: {', '.join(self.paused)}"


@dataclass(frozen=True, slots=True)
class AdminView:
    """The admin process that a supervisor has or should have: `listen` is a URL, or where it tries to listen."""

    pid: int | None
    listen: str
    problem: str | None


@dataclass(frozen=True, slots=True)
class DutyView:
    """A duty of the maintainer's that fails: its latest error, and since when (Unix seconds) it has done so."""

    name: str
    since: float
    error: str


@dataclass(frozen=True, slots=True)
class SupervisorView:
    """One supervisor of the registry. `alive` is None where this machine cannot tell; of one that is not
    `visible`, because its scoreboard cannot be read, pools and workers are unknown.

    `duties` are those of its maintainer that fail.
    """

    id: str
    pid: int
    host: str
    alive: bool | None
    visible: bool
    started_at: float
    version: str
    config: str
    maintainer: int | None
    stopping: str
    trouble: str
    admin: AdminView | None
    duties: list[DutyView] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TypeView:
    """One type: its jobs by state, failed attempts of the last hour, and how long its latest jobs took.

    `due` jobs wait although their time has come, the first of them for `oldest_age` seconds, whatever pool may
    take them; they are counted up to COUNT_LIMIT. `last_hour` is what our workers did, up to the last full minute.
    """

    type: str
    jobs: dict[str, int]
    paused: bool
    handled: bool
    failures_last_hour: int
    mean_seconds: float | None
    longest_seconds: float | None
    due: int
    oldest_age: float | None
    last_hour: Hour = QUIET


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """One schedule: seconds until it fires next (below 0: nobody fires it), when it last did, by which job."""

    name: str
    next_in: float
    last_at: float | None
    last_job: int | None


@dataclass(frozen=True, slots=True)
class Overview:
    """Everything at one moment. `handled` of a type says whether a pool of a living supervisor takes it.

    `types` are at most MOST_TYPES: those with a pool, the paused ones, and of the others those with the longest
    backlog; `more_types` others are added up in `other_types`. `unhandled` and `paused` name MOST_NAMED at most;
    `unhandled_types` is how many types no pool takes, `unmet` says what jobs require that no pool has.
    """

    database: str
    time: float
    supervisors: list[SupervisorView]
    pools: list[PoolView]
    workers: list[WorkerView]
    jobs: dict[str, int]
    types: list[TypeView]
    paused: list[str]
    unhandled: list[str]
    failures_last_hour: dict[str, int]
    slowest: list[dict[str, Any]]
    schedules: list[ScheduleView]
    unhandled_types: int = 0
    more_types: int = 0
    other_types: TypeView | None = None
    unmet: list[str] = field(default_factory=list)

    @property
    def running(self) -> bool:
        return any(supervisor.alive is not False for supervisor in self.supervisors)

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"running": self.running}
