"""The interface between the rest of the system and a database: small protocols, one for each concern.

Nothing above `store/` knows which engine it talks to. What an engine opens may be used only in the process that
opened it; in a forked child each call raises StoreError. Methods raise StoreBusy when another writer held the lock
for too long (trying again is right), StoreGone when what was opened is no longer the database that the URL names, and
StoreError when the database cannot be used. All times are Unix seconds given by the caller, so that tests decide them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from supervisor.domain.duty import Duty
from supervisor.domain.job import Claim, Job, JobEvent, NewJob, NewJobs
from supervisor.domain.settlement import Settlement

# `import … as …` of the same name: the rest of the system imports these from here.
from supervisor.store.concerns import AlertStore as AlertStore
from supervisor.store.concerns import Backlog as Backlog
from supervisor.store.concerns import ClaimLocks as ClaimLocks
from supervisor.store.concerns import Controls as Controls
from supervisor.store.concerns import FinishedJobs as FinishedJobs
from supervisor.store.concerns import History as History
from supervisor.store.concerns import JobActions as JobActions
from supervisor.store.concerns import Jobs as Jobs
from supervisor.store.concerns import Registry as Registry
from supervisor.store.concerns import Schedules as Schedules
from supervisor.store.concerns import SettleExpired as SettleExpired
from supervisor.store.concerns import Statistics as Statistics
from supervisor.store.ownership import DatabaseHolder as DatabaseHolder
from supervisor.store.ownership import Holder as Holder
from supervisor.store.ownership import OwnerLock as OwnerLock
from supervisor.store.ownership import Ownership as Ownership
from supervisor.store.ownership import Writers as Writers
from supervisor.store.sql.connection import RowRefused as RowRefused
from supervisor.store.values import AdoptedColumn as AdoptedColumn
from supervisor.store.values import AdoptOptions as AdoptOptions
from supervisor.store.values import AdoptReport as AdoptReport
from supervisor.store.values import Anomalies as Anomalies
from supervisor.store.values import ControlState as ControlState
from supervisor.store.values import Cursor as Cursor
from supervisor.store.values import Depth as Depth
from supervisor.store.values import ErrorGroup as ErrorGroup
from supervisor.store.values import Exchange as Exchange
from supervisor.store.values import Expired as Expired
from supervisor.store.values import Filter as Filter
from supervisor.store.values import GoneHost as GoneHost
from supervisor.store.values import HostControl as HostControl
from supervisor.store.values import JobSelector as JobSelector
from supervisor.store.values import Lease as Lease
from supervisor.store.values import NeedsChange as NeedsChange
from supervisor.store.values import Page as Page
from supervisor.store.values import Planned as Planned
from supervisor.store.values import RecordedRun as RecordedRun
from supervisor.store.values import Redriven as Redriven
from supervisor.store.values import RestoreReport as RestoreReport
from supervisor.store.values import Retried as Retried
from supervisor.store.values import ServerState as ServerState
from supervisor.store.values import Sort as Sort
from supervisor.store.values import SupervisorRecord as SupervisorRecord
from supervisor.store.values import TypeSpeed as TypeSpeed
from supervisor.store.values import WorkerRecord as WorkerRecord

Answer = TypeVar("Answer")

# Producing


class Producer(Protocol):
    """Programs enqueue jobs and look at them. Its own commits survive power loss, unless a job need not be durable."""

    def enqueue(self, jobs: NewJobs) -> list[int]:
        """Insert jobs in one transaction and return their ids; a duplicate key returns the existing job's id."""

    def put(self, job: NewJob) -> tuple[int, bool]:
        """Insert a job, or find one by its key. Returns its id, and whether it is new. Raises QueueFull: see NewJob."""

    def put_each(self, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
        """`put` for each of these, in one transaction: the answers or the errors of each.

        If one is refused, or a write has failed before the commit, each is put by itself. Raises what concerns them
        all: the transaction could not begin, or it is unknown whether it was committed.
        """

    def make_durable(self) -> None:
        """Whatever has been committed survives power loss. Raises StoreError if that cannot be ensured."""

    def job(self, job_id: int) -> Job | None: ...

    def events(self, ids: Collection[int]) -> dict[int, JobEvent]:
        """How these jobs are now, by id; those that do not exist are missing."""

    @property
    def operations(self) -> Operations:
        """On the same connection: it is closed with the producer."""

    def gone(self) -> bool:
        """Whether this is no longer the database that the URL names, or its jobs were moved: then open another."""

    def moved_to(self) -> str:
        """The URL of the database to which all jobs were moved; empty if they were not."""

    def close(self) -> None: ...


class TransactionalInsert(Protocol):
    """Enqueueing inside a transaction of the caller's: on its driver's connection, or on what a framework has for it.

    Raises InvalidJob for an object that leads to no connection of this engine.
    """

    def prepare(self, connection: Any, *, create: bool) -> bool:
        """Make sure that the caller's connection finds the tables. Returns whether they are committed.

        If there are none and the caller has begun a transaction, they are made inside it. Raises StoreError at once if
        that is impossible: it never waits, since the caller may hold the write lock.
        """

    def insert(self, connection: Any, jobs: NewJobs) -> list[int]:
        """Insert jobs, if and only if the caller's transaction commits. The driver's errors are raised as they are."""

    def put(self, connection: Any, job: NewJob) -> tuple[int, bool]:
        """The same for one job. Returns its id, and False if that is an existing job with the same unique key."""

    def job(self, connection: Any, job_id: int) -> Job | None:
        """The job as the caller's transaction sees it."""

    def is_asynchronous(self, connection: Any) -> bool:
        """Whether it is for `awaited`."""

    async def awaited(self, connection: Any, call: Callable[[object], Answer]) -> Answer:
        """Run `call` with the synchronous form of an asynchronous connection, without blocking the event loop."""


# Claiming


class Claims(Protocol):
    """A worker claims jobs and settles them."""

    def register(self, worker: WorkerRecord) -> None:
        """Write the worker's row. It must exist before its first claim, so that recovery can judge it."""

    def settle_and_claim(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        wanted: JobSelector,
        want: int,
        lock_time: float,
        now: float,
        *,
        posted: bool = False,
    ) -> Exchange:
        """Settle, then claim up to `want` due jobs, best first. With nothing to do, nothing is locked.

        `posted`: somebody has just seen a due job, so it is not looked for before locking.
        """

    def held_by(self, owner: str) -> list[Claim]:
        """A worker's claims, in the order in which it runs them."""

    def show_progress(
        self, owner: str, runs: Sequence[tuple[int, int]], fraction: float, text: str, now: float
    ) -> None:
        """Store how far these runs, (job, token) each, are; those whose claims are lost stay as they are."""

    def limits(self, jobs: Sequence[int]) -> Mapping[int, int]:
        """The largest batch that each job may run in, for those whose batch has failed before."""

    def close(self) -> None: ...


# Opened stores: one connection, by concern


class EventLog(Protocol):
    """Takes structured log events."""

    def info(self, event: str, **fields: Any) -> Any: ...

    def warning(self, event: str, **fields: Any) -> Any: ...


class MaintenanceStore(Protocol):
    """What the maintainer works with."""

    @property
    def registry(self) -> Registry: ...

    @property
    def locks(self) -> ClaimLocks: ...

    @property
    def backlog(self) -> Backlog: ...

    @property
    def controls(self) -> Controls: ...

    @property
    def history(self) -> History: ...

    @property
    def finished(self) -> FinishedJobs: ...

    @property
    def schedules(self) -> Schedules: ...

    def duties(self, log: EventLog, *, vacuum: bool = True) -> Sequence[Duty]:
        """The engine's own maintenance. A duty that needs nothing checks that the database is there. `vacuum`: whether
        an engine on a server may make one.
        """

    def flush(self) -> None:
        """Called before `close` when the supervisor ends: complete writes that are still deferred."""

    def close(self) -> None: ...


class Operations(Protocol):
    """What operators work with: the command line and the admin process."""

    @property
    def jobs(self) -> Jobs: ...

    @property
    def actions(self) -> JobActions: ...

    @property
    def registry(self) -> Registry: ...

    @property
    def backlog(self) -> Backlog: ...

    @property
    def controls(self) -> Controls: ...

    @property
    def history(self) -> History: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def statistics(self) -> Statistics: ...

    def check(self, *, writable: bool = False) -> None:
        """Raises StoreGone if this is no longer the database that the URL names; with `writable` also StoreError if it
        cannot be written now, after waiting for as long as any writer would.
        """

    def close(self) -> None: ...


class ChangeFeed(Protocol):
    """Reports that somebody has committed, whoever it was.

    Its descriptor is only a hint: the commit that it announces may become visible a little later. So the caller checks
    `version` repeatedly, at the `window`'s distances after the hint. Where there are no hints, `problem` says why.
    """

    @property
    def window(self) -> Sequence[float]: ...

    @property
    def problem(self) -> str: ...

    @property
    def unhinted(self) -> float:
        """The seconds after which something may have been committed without a hint."""

    def fileno(self) -> int | None:
        """Readable when there are hints; None where there never are."""

    def drain(self) -> bool:
        """Consume the hints that have come; whether one of them was about this database. May wait for others that come
        with them.
        """

    def version(self) -> int:
        """Changes whenever anybody has committed. Cheap."""

    def pause(self) -> None:
        """No hints for a while: they slow down writers."""

    def resume(self) -> bool:
        """Hints again. True if they were paused: commits in the meantime gave none."""

    def close(self) -> None: ...


# Without a connection


class Database(Protocol):
    """The database as a whole: where it is, its schema, its copies."""

    @property
    def file(self) -> Path | None:
        """The database's file; None for a server."""

    @property
    def folder(self) -> Path:
        """Where supervisors of this database keep shared files."""

    def exists(self) -> bool: ...

    def check_integrity(self, seconds: float) -> bool:
        """Raises StoreError if it is damaged. Returns whether the check was completed in this time."""

    def epoch(self) -> str:
        """Identifies this life of the database: after a restore, ids may be used again."""

    def migrate(self) -> list[int]:
        """Create the schema or bring it up to date. Returns the versions applied. Raises StoreError if the database
        cannot be written, even if there is nothing to do.
        """

    def pin(self) -> None:
        """From now on accept only the database that is there now: opening another one raises StoreGone."""

    def adopt(self, options: AdoptOptions, *, rehearse: bool = False) -> AdoptReport:
        """Take over an application's table, or say what that would do. Raises InvalidOption, StoreError with all
        reasons, or NothingToAdopt; then nothing is changed.
        """

    def back_up(self, target: Path) -> None:
        """An online copy into a new file."""

    def restore(self, copy: Path) -> RestoreReport:
        """Replace the database with a copy; the previous one is kept beside it."""


class Engine(Protocol):
    """One database, by URL. Creating the engine connects to nothing; opening a store does. It may be pickled."""

    @property
    def url(self) -> str: ...

    @property
    def database(self) -> Database: ...

    @property
    def ownership(self) -> Ownership: ...

    @property
    def transactional(self) -> TransactionalInsert: ...

    def meta(self, job_id: int) -> Any:
        """The `meta` of a job; None if it has none. Opens a connection of its own."""

    def producer(self, patience: float | None = None, *, create: bool = True) -> Producer:
        """`patience`: seconds to wait for other writers. With `create`, a missing database is made."""

    def claims(self, patience: float | None = None, *, keep_done: bool = True) -> Claims:
        """`patience`: seconds to wait for other writers. Without `keep_done`, jobs may be deleted with success."""

    def maintenance(self) -> MaintenanceStore: ...

    def operations(self) -> Operations:
        """Only for a database that exists and has the current schema; any other is left untouched."""

    def changes(self, *, ends: bool = False) -> ChangeFeed:
        """With `ends` the hints need only tell of jobs that end or change, otherwise of jobs that come."""
