"""The values of the store's interface, the same for every engine. Times are Unix seconds."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from supervisor.domain.dead_rows import Keeper, TableRows
from supervisor.domain.job import Claim, Job, Run, Status

TABLES = frozenset(
    {
        "job_batch_limits",
        "job_controls",
        "job_errors",
        "job_history",
        "job_meta",
        "job_runs",
        "job_schedules",
        "job_second_chances",
        "job_supervisors",
        "job_workers",
        "jobs",
    }
)
"""All tables of the schema, for tools that would take them for leftovers."""


class JobSelector(NamedTuple):
    """Which jobs a pool takes: its types, capabilities as one space-separated text, lowest priority (None: all)."""

    types: tuple[str, ...]
    capabilities: str = ""
    min_priority: int | None = None

    def narrowed(self, types: tuple[str, ...]) -> JobSelector:
        """With these types in place of its own. Cheap if they are the same."""
        return self if types is self.types else self._replace(types=types)


class Exchange(NamedTuple):
    """What one exchange did: the new claims, and the settlements refused because their claim was lost.

    `refused` are (job, why) of rows that the database would not have changed: they are quarantined. A worker that is
    not `registered` any more is given no claims. `doubtful`: the session is not that of the exchange
    before, or a claim was lost: the server may have undone what it had committed last.
    """

    claims: list[Claim]
    lost: list[int]
    refused: Sequence[tuple[int, str]] = ()
    registered: bool = True
    doubtful: bool = False


class Depth(NamedTuple):
    """A backlog: due jobs (counted up to a limit), when the first of them became due, when the next will be due."""

    due: int = 0
    oldest: float | None = None
    next_due: float | None = None


class SupervisorRecord(NamedTuple):
    """One running (or dead) supervisor. `owner_lock` and `scoreboard` are paths of files on its host.

    Where `node` is the same, so are pids; empty if only `host` tells that.
    """

    id: str
    pid: int
    host: str
    machine_id: str
    boot_id: str
    owner_lock: str
    scoreboard: str
    config: str
    version: str
    started_at: float
    node: str = ""


class Lease(NamedTuple):
    """A supervisor's lease: the seconds that are left of it, below 0 if it has ended, and what it has posted with it,
    as JSON, for other hosts.
    """

    left: float
    posted: str


class WorkerRecord(NamedTuple):
    """One incarnation of a worker. `policy` is JSON: how its jobs are settled if it is found dead.

    `pid_started` is when the kernel started its process, in clock ticks since the boot; None where nobody knows.
    """

    incarnation: str
    supervisor: str
    pool: str
    name: str
    pid: int
    slot: int
    policy: str
    started_at: float
    pid_started: int | None = None


class Expired(NamedTuple):
    """A claim whose lock has expired, exactly as it was read. Times are Unix seconds, 0 if missing."""

    job_id: int
    token: int
    owner: str
    expires_at: float
    claimed_at: float = 0.0


class Cursor(NamedTuple):
    """A position among the failed jobs: when the last one read had failed, and its id."""

    failed_at: float
    job_id: int


class Redriven(NamedTuple):
    """Failed jobs that are pending again, the cursor reached, the position before the first job whose unique key an
    unfinished one has, and whether there may be more jobs after the cursor.
    """

    jobs: Sequence[int]
    reached: Cursor
    held: Cursor | None = None
    more: bool = False


class Retried(NamedTuple):
    """How many jobs are pending again, and those that are not because an unfinished one has their unique key: its id
    by theirs.
    """

    changed: int
    duplicates: Mapping[int, int]


class HostControl(NamedTuple):
    """What operators have set for the hosts that match a pattern alone: a type is `paused`, or a pool has so many
    `workers`.
    """

    kind: str
    host: str
    name: str
    value: int


class ControlState(NamedTuple):
    """What operators have set: paused types, pool sizes by name, the number of reloads requested, drained hosts, and
    `on_hosts` what holds on some hosts.
    """

    paused: frozenset[str]
    sizes: Mapping[str, int]
    reloads: int
    drained: frozenset[str] = frozenset()
    on_hosts: tuple[HostControl, ...] = ()

    def paused_on(self, host: str) -> frozenset[str]:
        """The types that are paused on this host, without those that are paused everywhere."""
        return frozenset(one.name for one in self.on_hosts if one.kind == "paused" and fnmatchcase(host, one.host))

    def size_on(self, pool: str, host: str) -> int | None:
        """The size that was set for the host itself, else for the longest pattern that it matches, else everywhere."""
        found = [one for one in self.on_hosts if one.kind == "workers" and one.name == pool]
        matching = [one for one in found if fnmatchcase(host, one.host)]
        best = max(matching, key=lambda one: (one.host == host, len(one.host), one.host), default=None)
        return self.sizes.get(pool) if best is None else best.value

    def hosts_of(self, kind: str, name: str) -> list[str]:
        """The hosts, or patterns of hosts, for which something was set."""
        return sorted(one.host for one in self.on_hosts if (one.kind, one.name) == (kind, name))


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule's row: when it fires next, when it last did and by which job, and what it enqueues.

    Without a `type` it is not known what it enqueues. While it is paused, `next_at` stays as it was.
    """

    name: str
    timing: str
    next_at: float
    last_at: float | None = None
    last_job: int | None = None
    type: str = ""
    payload: str = "{}"
    paused_at: float | None = None


class Filter(NamedTuple):
    """Selects the jobs that match every condition; one that is empty or None matches all jobs.

    `error` is a part of the last message, in any case; `text` a part of that, of the payload or of the result, of which
    only the first 64 Ki characters are read; times are Unix seconds; `tags` all stand in the list "tags" of the job's
    meta.
    """

    statuses: tuple[Status, ...] = ()
    types: tuple[str, ...] = ()
    error: str = ""
    unique_key: str | None = None
    requires: str | None = None
    priority: int | None = None
    finished_after: float | None = None
    finished_before: float | None = None
    tags: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    text: str = ""


class Sort(enum.StrEnum):
    """By what a list of jobs is sorted, and then by id. `changed`: when it ended, else began, else was created."""

    ID = "id"
    TYPE = "type"
    STATUS = "status"
    PRIORITY = "priority"
    ATTEMPTS = "attempts"
    DUE = "due"
    CHANGED = "changed"


class Page(NamedTuple):
    """Some jobs, the latest first. `next` is the id before which to continue; None: there are no more.

    A page may be short, even empty, and still have a next one: a query reads a bounded number of rows.
    """

    jobs: list[Job]
    next: int | None


class RecordedRun(NamedTuple):
    """A run of any job. `number` grows with each recorded run; `error` is the latest error of the job."""

    number: int
    type: str
    error: str | None
    run: Run


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failed attempts of a type that differ in numbers and names only. `last_at` is Unix seconds.

    `message` is the latest one's, `jobs` counts the jobs that are failed or quarantined now.
    """

    type: str
    kind: str
    message: str
    count: int
    jobs: int
    last_at: float
    last_job: int


@dataclass(frozen=True, slots=True)
class TypeSpeed:
    """How long the latest done jobs of a type took, in seconds."""

    type: str
    count: int
    mean: float
    longest: float


@dataclass(frozen=True, slots=True)
class AdoptOptions:
    """How an application's table is to be understood; whatever is left out is proposed.

    `renames` are {column: new name or meaning}, `statuses` {word: state}, `types` {old: new}. `statements` are the
    application's, to be tried. `view` is the name of the view for statements in the old words.
    """

    table: str = "jobs"
    renames: Mapping[str, str] = field(default_factory=dict)
    statuses: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    statements: tuple[str, ...] = ()
    view: str = ""


@dataclass(frozen=True, slots=True)
class NeedsChange:
    """A statement of an application that fails on its adopted table, or would mean something else, and why. It goes on
    with the view `with_view` in place of the table, if that is given.
    """

    statement: str
    reason: str
    with_view: str | None = None


@dataclass(frozen=True, slots=True)
class AdoptedColumn:
    """What becomes of a column: `kept_as` is where the application's values stand, `meaning` the column of a job that
    takes them over, if any. `proposed`: no option said so.
    """

    column: str
    kept_as: str
    meaning: str | None
    proposed: bool


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """The result of taking over a table, or of its rehearsal, which has no `backup`.

    `recovered` are running rows put back; `extra_columns` are the application's own; `going_on` are statements tried
    that work as they are, `needing_change` those that do not. `job_types` are the most frequent ones.
    """

    rows: int
    recovered: int
    finished: int
    backup: Path | None
    extra_columns: tuple[str, ...]
    notes: tuple[str, ...]
    needing_change: tuple[NeedsChange, ...]
    columns: tuple[AdoptedColumn, ...]
    statuses: Mapping[str, str]
    types: Mapping[str, str]
    job_types: tuple[str, ...]
    view: str | None
    going_on: tuple[str, ...]


class GoneHost(NamedTuple):
    """A host whose last supervisor has gone: its pid, when that was noticed (Unix seconds), and whether it had stopped
    by itself; otherwise it died, or was cut off.
    """

    host: str
    pid: int
    at: float
    stopped: bool


class ServerState(NamedTuple):
    """A database server. `time` is its clock (Unix seconds), `max_connections` what is left for ordinary users;
    `notifications` the part of their queue that is in use, 1 being all; `keepers` what keeps dead rows, as far as we
    see it, and `sees_all` whether we may see the transactions of other users. `pooled`: a pooler stands before it.
    `powerless` are users of workers who may not end the sessions of the other ones.
    """

    time: float
    standby: bool
    connections: int
    max_connections: int
    notifications: float
    sees_all: bool
    tables: tuple[TableRows, ...]
    keepers: tuple[Keeper, ...]
    pooled: bool = False
    powerless: tuple[str, ...] = ()


class Anomalies(NamedTuple):
    """Rows that should not be there. `held` counts running jobs by the id of the supervisor whose worker has them,
    "" standing for none that is known, apart from claims of foreign programs; `overdue` are finished jobs past
    their retention, `future` those that began or ended after now. Counts go up to a limit.
    """

    held: Mapping[str, int]
    expired: int
    orphans: int  # rows of errors and runs without a job
    overdue: int
    future: int


class RestoreReport(NamedTuple):
    """The result of restoring a copy. `kept` is the new path of the previous database, if there was one."""

    jobs: int
    schema: int
    kept: Path | None
