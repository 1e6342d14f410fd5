"""What the rest of the system asks of a database: six small roles and an engine that opens them.

Nothing above `store/` knows which engine it talks to. Every role may be used only in the process that
opened it; in a forked child each call raises StoreError. Methods raise StoreBusy when another writer
held the lock for too long (trying again is right), StoreGone when what was opened is no longer the database
that the URL names, and StoreError when the database cannot be used.
All times are Unix seconds given by the caller, so that tests decide what time it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from supervisor.domain.job import Attempt, Claim, Job, NewJob, Run, Status
from supervisor.domain.settlement import Settlement


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs a pool takes: its types, and its capabilities as one space-separated text."""

    types: tuple[str, ...]
    capabilities: str = ""


class Exchange(NamedTuple):
    """What one exchange did: the new claims, and the settlements refused because their claim was lost."""

    claims: list[Claim]
    lost: list[int]


@dataclass(frozen=True, slots=True)
class Depth:
    """How much waits for a pool: due jobs (counted up to a limit), when the first became due, the next due."""

    due: int = 0
    oldest: float | None = None
    next_due: float | None = None


@dataclass(frozen=True, slots=True)
class SupervisorRecord:
    """One running (or dead) supervisor. `owner_lock` and `scoreboard` are paths of files."""

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


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker's incarnation. `policy` is JSON: what decides over its jobs when it is found dead."""

    incarnation: str
    supervisor: str
    pool: str
    name: str
    pid: int
    slot: int
    policy: str
    started_at: float


@dataclass(frozen=True, slots=True)
class Expired:
    """A claim whose lock has run out, exactly as it was seen. Times are Unix seconds, 0 where there is none."""

    job_id: int
    token: int
    owner: str
    expires_at: float
    claimed_at: float = 0.0


@dataclass(frozen=True, slots=True)
class Controls:
    """What operators have set: paused types, pool sizes by name, and how often a reload was asked for."""

    paused: frozenset[str]
    sizes: Mapping[str, int]
    reloads: int


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule's row: when it fires next, when it last did and by which job."""

    name: str
    timing: str
    next_at: float
    last_at: float | None = None
    last_job: int | None = None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which jobs a bulk command means. `finished_before` is Unix seconds."""

    statuses: tuple[Status, ...]
    type: str | None = None
    finished_before: float | None = None


@dataclass(frozen=True, slots=True)
class TypeSpeed:
    """How long the latest done jobs of a type took, in seconds."""

    type: str
    count: int
    mean: float
    longest: float


@dataclass(frozen=True, slots=True)
class NeedsChange:
    """A statement of an application that its adopted table refuses, and why."""

    statement: str
    reason: str


@dataclass(frozen=True, slots=True)
class AdoptReport:
    """What taking over a table did. `recovered` are running rows put back; `extra_columns` are the
    application's own; `needing_change` are statements tried that no longer work.
    """

    rows: int
    recovered: int
    backup: Path
    extra_columns: tuple[str, ...]
    notes: tuple[str, ...]
    needing_change: tuple[NeedsChange, ...]


class Intake(Protocol):
    """Programs put jobs in and look at them. Its own commits survive power loss."""

    def enqueue(self, jobs: Sequence[NewJob], *, connection: sqlite3.Connection | None = None) -> list[int]: ...

    def job(self, job_id: int) -> Job | None: ...

    def status(self, job_id: int) -> Status | None: ...

    def gone(self) -> bool: ...

    def close(self) -> None: ...


class Claims(Protocol):
    """A worker takes jobs and settles them."""

    def register(self, worker: WorkerRecord) -> None: ...

    def exchange(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        wanted: Wanted,
        want: int,
        lock_time: float,
        now: float,
    ) -> Exchange: ...

    def limits(self, jobs: Sequence[int]) -> Mapping[int, int]: ...

    def close(self) -> None: ...


class Chores(Protocol):
    """The maintainer keeps claims, registry and file in order."""

    def version(self) -> int: ...

    def insist_on_file(self) -> None: ...

    def supervisors(self) -> list[SupervisorRecord]: ...

    def register(self, supervisor: SupervisorRecord) -> None: ...

    def forget_supervisor(self, supervisor: str) -> None: ...

    def workers_of(self, supervisor: str) -> list[WorkerRecord]: ...

    def worker(self, incarnation: str) -> WorkerRecord | None: ...

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None: ...

    def held_by(self, owner: str) -> list[Claim]: ...

    def settle_dead(
        self, owner: str, settlements: Sequence[Settlement], now: float, *, worker: str | None = None
    ) -> int: ...

    def renew(self, owners: Iterable[str], renew_before: float, expires_at: float) -> int: ...

    def expired(self, now: float, limit: int) -> list[Expired]: ...

    def writable(self) -> bool: ...

    def reclaim(self, claim: Expired, settle: SettleExpired, now: float) -> bool: ...

    def cancels(self) -> list[tuple[int, int, str]]: ...

    def glance(self, wanted: Wanted, now: float) -> bool: ...

    def depth(self, wanted: Wanted, now: float, limit: int) -> Depth: ...

    def unhandled(self, types: Iterable[str]) -> list[str]: ...

    def unfinished(self, wanted: Wanted, now: float) -> bool: ...

    def holding(self, supervisor: str) -> bool: ...

    def progress_of(self, types: Iterable[str], since: float) -> tuple[int, int]: ...

    def controls(self) -> Controls: ...

    def prune(self, after: int, limit: int, done_before: float, failed_before: float) -> tuple[int, int]: ...

    def checkpoint(self) -> int: ...

    def truncate_log(self) -> bool: ...

    def log_size(self) -> int: ...

    def inserted(self) -> int: ...

    def yield_to_others(self) -> None: ...

    def close(self) -> None: ...


class Timetable(Protocol):
    """The maintainer fires schedules. Its own commits survive power loss, as those of programs do."""

    def plan(self, name: str, timing: str, next_at: float) -> Planned: ...

    def fire(self, planned: Planned, jobs: Sequence[NewJob], next_at: float, now: float) -> list[int] | None: ...

    def close(self) -> None: ...


class SettleExpired(Protocol):
    """Decides what becomes of an expired claim, inside the transaction that reclaims it."""

    def __call__(self, claim: Claim, owner: str) -> Settlement: ...


class Operations(Protocol):
    """People look at jobs and change their fate."""

    def jobs(self, *, status: Status | None, type: str | None, before: int | None, limit: int) -> list[Job]: ...

    def job(self, job_id: int) -> Job | None: ...

    def attempts(self, job_id: int) -> list[Attempt]: ...

    def runs(self, job_id: int) -> list[Run]: ...

    def ids(self, which: Filter) -> list[int]: ...

    def retry(self, ids: Iterable[int], now: float) -> int: ...

    def cancel(self, job_id: int, now: float) -> Status: ...

    def delete(self, ids: Iterable[int]) -> int: ...

    def pause(self, type: str, now: float) -> None: ...

    def resume(self, type: str) -> bool: ...

    def scale(self, pool: str, workers: int | None, now: float) -> None: ...

    def request_reload(self, now: float) -> None: ...

    def controls(self) -> Controls: ...

    def counts(self) -> list[tuple[str, Status, int]]: ...

    def depth(self, wanted: Wanted, now: float, limit: int) -> Depth: ...

    def unhandled(self, types: Iterable[str]) -> list[str]: ...

    def failures(self, since: float) -> list[tuple[str, int]]: ...

    def speeds(self) -> list[TypeSpeed]: ...

    def schedules(self) -> list[Planned]: ...

    def supervisors(self) -> list[SupervisorRecord]: ...

    def owner_lives(self, supervisor: SupervisorRecord) -> bool | None: ...

    def close(self) -> None: ...


class OwnerLock(Protocol):
    """Says "this supervisor lives" to every other process for as long as the process that took it does."""

    @property
    def path(self) -> Path: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds the writers' lock since when, in monotonic seconds."""

    pid: int
    since: float


class Writers(Protocol):
    """Looks at the lock on which our writers queue, and never takes it."""

    def holder(self) -> Holder | None: ...


class Engine(Protocol):
    """One database, by URL. Opening a role connects; making the engine does not. It may be pickled."""

    @property
    def url(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def watched(self) -> Path | None: ...

    @property
    def watch_prefix(self) -> str: ...

    @property
    def machine_id(self) -> str: ...

    @property
    def boot_id(self) -> str: ...

    def exists(self) -> bool: ...

    def look_for_damage(self, seconds: float) -> bool: ...

    def migrate(self) -> list[int]: ...

    def pin(self) -> None: ...

    def adopt(self, *, payload_column: str | None = None, statements: Sequence[str] = ()) -> AdoptReport: ...

    def writers(self) -> Writers: ...

    def holders(self) -> list[int]: ...

    def claim_ownership(self, supervisor: str) -> OwnerLock: ...

    def intake(self, *, create: bool = True) -> Intake: ...

    def claims(self) -> Claims: ...

    def chores(self) -> Chores: ...

    def timetable(self) -> Timetable: ...

    def operations(self) -> Operations: ...

    def back_up(self, target: Path) -> None: ...
