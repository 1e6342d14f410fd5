"""The interface between the rest of the system and a database.

Nothing above `store/` knows which engine it talks to, and it imports this module alone. What an opened store offers is
in the classes of `sql/`, one for each concern, which both engines share; the protocols here are what each engine does
in its own way. What an engine opens may be used only in the process that opened it; in a forked child each call raises
StoreError. Methods raise StoreBusy when another writer held the lock for too long (trying again is right), StoreGone
when what was opened is no longer the database that the URL names, and StoreError when the database cannot be used. All
times are Unix seconds given by the caller, so that tests decide them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from supervisor.domain.job import Job, NewJob, NewJobs
from supervisor.store.ownership import DatabaseHolder, Holder, OwnerLock, Ownership, SupervisorRecord, Writers
from supervisor.store.sql.backlog import Backlog, Depth, JobSelector
from supervisor.store.sql.claims import ClaimLocks, Claims, Exchange, Expired, SettleExpired
from supervisor.store.sql.connection import RowRefused
from supervisor.store.sql.controls import Controls, ControlState, HostControl
from supervisor.store.sql.job_actions import Cursor, FinishedJobs, JobActions, Redriven, Retried
from supervisor.store.sql.jobs import Filter, Jobs, Page, RecordedRun, Sort
from supervisor.store.sql.producer import Producer, TransactionalInsert
from supervisor.store.sql.registry import GoneView, Lease, Registry, WorkerRecord
from supervisor.store.sql.schedules import AlertStore, Planned, Schedules
from supervisor.store.sql.statistics import (
    Anomalies,
    ErrorGroup,
    History,
    KeeperView,
    ServerState,
    Statistics,
    TableView,
    TypeSpeed,
)
from supervisor.store.sql.stores import EventLog, MaintenanceStore, Operations
from supervisor.store.values import AdoptedColumn, AdoptOptions, AdoptReport, NeedsChange, RestoreReport

Answer = TypeVar("Answer")


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

    def claims(self, *, keep_done: bool = True) -> Claims:
        """Without `keep_done`, jobs may be deleted with success."""

    def maintenance(self) -> MaintenanceStore: ...

    def operations(self) -> Operations:
        """Only for a database that exists and has the current schema; any other is left untouched."""

    def changes(self, *, ends: bool = False) -> ChangeFeed:
        """With `ends` the hints need only tell of jobs that end or change, otherwise of jobs that come."""
