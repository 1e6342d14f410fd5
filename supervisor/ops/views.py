"""Plain values that describe workers, pools, types and supervisors at one moment.

Times are seconds, memory is bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from supervisor.config.limits import in_words
from supervisor.domain.history import QUIET, Hour
from supervisor.domain.scaling import OLD_VERSION
from supervisor.domain.schedule import GRACE
from supervisor.domain.text import json_safe, text_of
from supervisor.store.base import ErrorGroup, GoneView, Planned, ServerView

COUNT_LIMIT = 10_000  # due jobs of a pool are counted no further
MOST_FAILURES = 500  # attempts of the last hour whose causes are looked at: each costs 0.1 ms
MOST_TYPES = 200  # types listed individually; the others are summed
MOST_NAMED = 50  # types without a pool, and paused types, listed by name
MOST_SCHEDULES = 200
SENTENCE = 1000  # characters of a reason that a supervisor posts

Level = Literal["ok", "note", "warning", "fault"]


def finite(value: Any) -> Any:
    """The value, or None for an infinite number or none at all, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def largest(values: Iterable[float | None]) -> float | None:
    """The largest of the known values, if there is one."""
    return max((value for value in values if value is not None), default=None)


class WorkerView(NamedTuple):
    """One worker, on this `host`. `running` is the number of jobs that it runs now; `running_for`, `time_limit`
    and `beat_age` are seconds; `memory` is its unshared memory.
    """

    name: str
    pool: str
    supervisor: int
    pid: int
    state: str
    job: int | None
    running_for: float | None
    progress: float | None
    text: str
    running: int
    claims: int
    done: int
    memory: int | None
    beat_age: float
    leaving: str | None
    device: str | None
    host: str = ""
    time_limit: float | None = None

    @property
    def leaving_shown(self) -> str:
        """Why it is to be replaced, for people; "" if it is not."""
        if not self.leaving or self.leaving.startswith(OLD_VERSION):
            return self.leaving or ""
        return f"to be replaced: {self.leaving}"


class PoolView(NamedTuple):
    """One pool of one supervisor. `due` is counted up to COUNT_LIMIT; `rate` is jobs a second.

    `problem` says what is wrong; `broken` means that no older code serves instead.
    `paused` lists its paused types; `memory` is the total of its workers. It takes no job below `min_priority`.
    """

    name: str
    supervisor: int
    types: list[str]
    capabilities: list[str]
    due: int
    oldest_age: float | None
    next_due_in: float | None
    paused: list[str]
    memory: int
    size: int = 0
    target: int = 0
    why: str = ""
    min_workers: int = 0
    max_workers: int = 0
    fixed: int | None = None
    rate: float = 0.0
    deaths: int = 0
    problem: str | None = None
    broken: bool = False
    host: str = ""
    leaving: int = 0  # of its `size`
    spares: int = 0
    spares_wanted: int = 0
    min_priority: int | None = None
    threads: str = ""  # of numerical libraries in a worker, and why

    @property
    def spares_shown(self) -> str:
        """ "" if it should have none and has none."""
        if not (self.spares or self.spares_wanted):
            return ""
        some = f"{self.spares} of {self.spares_wanted}" if self.spares < self.spares_wanted else str(self.spares)
        return f"{some} spare"

    @property
    def due_shown(self) -> str:
        return f"{self.due}+" if self.due >= COUNT_LIMIT else str(self.due)

    @property
    def lane(self) -> str:
        """ "" if it takes jobs of every priority."""
        return "" if self.min_priority is None else f"from priority {self.min_priority}"

    @property
    def remark(self) -> str:
        """The most important fact: a problem, paused types, or the reason for its size."""
        if self.problem:
            return f"BROKEN: {self.problem}" if self.broken else self.problem
        if not self.paused:
            return f"{self.lane}; {self.why}" if self.lane else self.why
        return "paused" if len(self.paused) == len(self.types) else f"paused: {', '.join(self.paused)}"


class AdminView(NamedTuple):
    """The admin process that a supervisor has or should have: `listen` is its URL, or the configured address."""

    pid: int | None
    listen: str
    problem: str | None
    token_file: str | None = None


class DutyView(NamedTuple):
    """A failing duty of the maintainer: its latest error, and since when it has failed (Unix seconds)."""

    name: str
    since: float
    error: str


class DeviceMemoryView(NamedTuple):
    """The memory of a device, in bytes: what pools may use of it, and what they use."""

    name: str
    budget: int
    used: int


class MemoryView(NamedTuple):
    """The memory that the pools of a supervisor share, in bytes. `stated` is it in the configuration; otherwise the
    budget follows from the machine. `pools` is what each uses, `templates` what is used for all of them together.
    """

    budget: int
    stated: bool
    pools: dict[str, int]
    templates: int
    devices: list[DeviceMemoryView]

    @property
    def used(self) -> int:
        return sum(self.pools.values()) + self.templates


class SupervisorView(NamedTuple):
    """One supervisor of the registry. `alive` is None if this machine cannot tell. If it is not `visible`, its
    scoreboard cannot be read and it has posted nothing, and its pools and workers are unknown.

    `lease_left` is the seconds until its lease ends if it does not renew it, None without leases; `drained` says that
    operators have drained its host.

    `duties` are the failing duties of its maintainer, `log_lost` the bytes of its log that could not be written.
    `memory` is None if it has not posted it.
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
    duties: Sequence[DutyView] = ()
    log_lost: int = 0
    lease_left: float | None = None
    drained: bool = False
    memory: MemoryView | None = None

    @property
    def state(self) -> str:
        """In a word or two: the first of these that holds."""
        if self.alive is False:
            return "dead"
        no_lease = self.lease_left is not None and self.lease_left <= 0
        states = {"problem": self.trouble, "stopping": self.stopping, "no lease": no_lease, "drained": self.drained}
        return next((word for word, holds in states.items() if holds), "running" if self.alive else "unknown")


class Present(NamedTuple):
    """What runs jobs at one moment. `paused` are the paused types, as they are stored; `types` those of some jobs."""

    supervisors: list[SupervisorView]
    pools: list[PoolView]
    workers: list[WorkerView]
    paused: frozenset[str]
    types: Mapping[int, str] = {}


class TypeView(NamedTuple):
    """One type: its jobs by state, failed attempts of the last hour, and how long its latest jobs took.

    `due` is the number of jobs that are due, the oldest for `oldest_age` seconds, in any pool; it is counted up to
    COUNT_LIMIT. `last_hour` is what the workers did; on other hosts, up to the last full minute. `limits` have the keys
    of the configuration; an operator may have chosen others. `held` counts the held jobs by their gates.
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
    limits: Mapping[str, Any] = {}
    limits_chosen: bool = False
    breaker_open: bool = False
    held: Mapping[str, int] = {}

    @property
    def limits_shown(self) -> str:
        """The limits and how far they are used: `2 of 5 running, rate 50/s, 76 held (70 key, 6 type)`; "" if there are
        none.
        """
        most, held, ready = self.limits.get("max_running"), self.jobs.get("held", 0), self.jobs.get("pending", 0)
        parts = (
            most and f"{self.jobs.get('running', 0)} of {most} running",
            most and ready and f"{ready} let through",
            in_words({key: value for key, value in self.limits.items() if key != "max_running"}),
            self.breaker_open and "breaker open",
            held and f"{held} held{by_gate(self.held)}",
        )
        return ", ".join(part for part in parts if part)

    @property
    def unsuccessful(self) -> int:
        return self.jobs.get("failed", 0) + self.jobs.get("quarantined", 0)


class ScheduleView(NamedTuple):
    """One schedule: seconds until it fires next (below 0: overdue), when it last fired, and the job it enqueued.

    `paused_at` is Unix seconds; a paused one fires nothing. `run_time`: no configuration has it. `silent` is for how
    many seconds none of its jobs has succeeded, if one should have by now; otherwise 0.
    """

    name: str
    next_in: float
    last_at: float | None
    last_job: int | None
    paused_at: float | None = None
    run_time: bool = False
    silent: float = 0.0

    @property
    def late(self) -> float:
        """For how many seconds it should have fired."""
        return 0.0 if self.paused_at is not None else max(0.0, -self.next_in)

    @property
    def unfired(self) -> bool:
        """Whether no supervisor fires it."""
        return self.late > GRACE


def by_gate(held: Mapping[str, int]) -> str:
    """How many are held at each gate: ` (70 key, 6 until due)`; "" for none."""
    parts = [f"{count} {'until due' if gate == 'due' else gate}" for gate, count in held.items() if count]
    return f" ({', '.join(parts)})" if parts else ""


def several_hosts(supervisors: Iterable[SupervisorView]) -> bool:
    return len({one.host for one in supervisors}) > 1


class Finding(NamedTuple):
    """`fact` is what was found, `advice` what to do about it. A fault prevents the supervisor from working properly.

    `name` tells the findings of `diagnose` apart. `blocks`: jobs that could run now do not, because of it. `type` is
    the type of the jobs that it concerns, `supervisor` the id of the supervisor, if it is one.
    """

    level: Level
    about: str
    fact: str
    advice: str = ""
    name: str = ""
    blocks: bool = False
    type: str = ""
    supervisor: str = ""


def schedules_of(planned: Iterable[Planned], now: float) -> list[ScheduleView]:
    """At most MOST_SCHEDULES of them."""
    return [
        ScheduleView(
            text_of(s.name),
            s.next_at - now,
            finite(s.last_at),
            s.last_job,
            finite(s.paused_at),
            s.definition is not None,
            s.silent(now),
        )
        for s in list(planned)[:MOST_SCHEDULES]
    ]


class Overview(NamedTuple):
    """The complete state at one moment. `handled` of a type says whether a pool of a running supervisor takes it.

    `types` are at most MOST_TYPES: those with a pool, the paused ones, and of the others those with the longest
    backlog; `more_types` others are summed in `other_types`. `unhandled` and `paused` name MOST_NAMED at most;
    `unhandled_types` is how many types no pool takes, `unmet` says which jobs no pool of their type takes;
    `server` is None for a file. `last_hour` is that of all types. `held` counts the held jobs by their gates. `causes`
    are the latest MOST_FAILURES failed attempts of the last hour.
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
    unmet: Sequence[Finding] = ()
    server: ServerView | None = None
    gone: Sequence[GoneView] = ()
    last_hour: Hour = QUIET
    held: Mapping[str, int] = {}
    causes: Sequence[ErrorGroup] = ()

    @property
    def running(self) -> bool:
        return any(supervisor.alive is not False for supervisor in self.supervisors)

    @property
    def several_hosts(self) -> bool:
        return several_hosts(self.supervisors)

    def as_json(self) -> dict[str, Any]:
        return json_safe(self) | {"running": self.running}  # type: ignore[no-any-return]
