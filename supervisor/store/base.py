"""The interface between the rest of the system and a database.

Nothing above `store/` knows which engine it talks to, and it imports this module alone. What an opened store offers is
in the classes of `sql/`, one for each concern, which both engines share; the classes here say what each engine does in
its own way. What an engine opens may be used only in the process that opened it; in a forked child each call raises
StoreError. Methods raise StoreBusy when another writer held the lock for too long (trying again is right), StoreGone
when what was opened is no longer the database that the URL names, and StoreError when the database cannot be used. All
times are Unix seconds given by the caller, so that tests decide them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from supervisor.domain.job import decoded
from supervisor.store.moving import MoveEnd
from supervisor.store.ownership import DatabaseHolder, Holder, OwnerLock, Ownership, SupervisorRecord, Writers
from supervisor.store.sql.batches import MOST_BATCHES, BatchView
from supervisor.store.sql.connection import Connection
from supervisor.store.sql.jobs import Filter, Page, Sort
from supervisor.store.sql.producer import Producer, TransactionalInsert
from supervisor.store.sql.registry import Controls, ControlState, GoneView, Lease, Registry, WorkerRecord

if TYPE_CHECKING:
    from supervisor.store.sql.backlog import Backlog, Depth, JobSelector
    from supervisor.store.sql.claims import ClaimLocks, Claims, Expired, SettledAndClaimed
    from supervisor.store.sql.gates import Gates, LimitView
    from supervisor.store.sql.job_actions import Cursor, FinishedJobs, Redriven, Retried
    from supervisor.store.sql.schedules import Planned, Schedules
    from supervisor.store.sql.statistics import ErrorGroup, History, KeeperView, ServerView, TableView
    from supervisor.store.sql.stores import MaintenanceStore, Operations
else:

    def __getattr__(name: str) -> Any:
        """What enqueueing does not need is loaded on first use."""
        for module, names in _LATER.items():
            if name in names.split():
                return getattr(import_module(f"supervisor.store.sql.{module}"), name)
        raise AttributeError(name)


_LATER = {
    "backlog": "Backlog Depth JobSelector",
    "claims": "ClaimLocks Claims Expired SettledAndClaimed",
    "gates": "Gates LimitView",
    "job_actions": "Cursor FinishedJobs Redriven Retried",
    "schedules": "Planned Schedules",
    "statistics": "ErrorGroup History KeeperView ServerView TableView",
    "stores": "MaintenanceStore Operations",
}


class ChangeFeed:
    """Reports that somebody has committed, whoever it was.

    Its descriptor is only a hint: the commit that it announces may become visible a little later. So the caller checks
    `version` after a hint, and `unhinted` seconds after each check, which that sets: few while more was announced than
    it saw. Where there are no hints, `problem` says why.
    """

    problem = ""
    unhinted: float

    def fileno(self) -> int | None:
        """Readable when there are hints; None where there never are."""
        raise NotImplementedError

    def drain(self, pause: float = 0.0) -> bool:
        """Consume the hints, after so many seconds and when what they announce is probably visible; whether there were
        any.
        """
        raise NotImplementedError

    def version(self) -> int:
        """Changes whenever anybody has committed. Cheap."""
        raise NotImplementedError

    def pause(self) -> None:
        """No hints for a while: they slow down writers."""

    def resume(self) -> bool:
        """Hints again. True if they were paused: commits in the meantime gave none."""
        return False

    def close(self) -> None:
        raise NotImplementedError


class AdoptOptions(NamedTuple):
    """How an application's table is to be understood; whatever is left out is proposed.

    `renames` are {column: new name or meaning}, `statuses` {word: state}.
    """

    table: str = "jobs"
    renames: Mapping[str, str] = {}
    statuses: Mapping[str, str] = {}


class AdoptedColumn(NamedTuple):
    """What becomes of a column: `kept_as` is where the application's values stand, `meaning` the column of a job that
    takes them over, if any. `proposed`: no option said so.
    """

    column: str
    kept_as: str
    meaning: str | None
    proposed: bool


class AdoptReport(NamedTuple):
    """The result of taking over a table, or of its rehearsal, which has no `backup`.

    `recovered` are running rows put back; `extra_columns` are the application's own. `job_types` are the most frequent
    ones.
    """

    rows: int
    recovered: int
    finished: int
    backup: Path | None
    extra_columns: tuple[str, ...]
    notes: tuple[str, ...]
    columns: tuple[AdoptedColumn, ...]
    statuses: Mapping[str, str]
    job_types: tuple[str, ...]
    view: str | None


class RestoreReport(NamedTuple):
    """The result of restoring a copy. `kept` is the new path of the previous database, if there was one."""

    jobs: int
    schema: int
    kept: Path | None


class Database:
    """The database as a whole: where it is, its schema, its copies."""

    file: Path | None = None
    """The database's file; None for a server."""

    def connect(self) -> Connection:
        """To look at something."""
        raise NotImplementedError

    @property
    def folder(self) -> Path:
        """Where supervisors of this database keep shared files."""
        raise NotImplementedError

    def exists(self) -> bool:
        raise NotImplementedError

    def check_integrity(self, seconds: float) -> bool:
        """Raises StoreError if it is damaged. Returns whether the check was completed in this time."""
        return True

    def epoch(self) -> str:
        """Identifies this life of the database: after a restore, ids may be used again."""
        with closing(self.connect()) as connection:
            row = connection.row(connection.queries.meta, {"key": "epoch"})
            return str(row[0]) if row else ""

    def migrate(self) -> list[int]:
        """Create the schema or bring it up to date. Returns the versions applied. Raises StoreError if the database
        cannot be written, even if there is nothing to do.
        """
        raise NotImplementedError

    def script(self) -> str:
        """What `migrate` would do, as SQL; empty if there is nothing to do."""
        raise NotImplementedError

    def pin(self) -> None:
        """From now on accept only the database that is there now: opening another one raises StoreGone."""

    def adopt(self, options: AdoptOptions, *, rehearse: bool = False) -> AdoptReport:
        """Take over an application's table, or say what that would do. Raises InvalidOption, StoreError with all
        reasons, or NothingToAdopt; then nothing is changed.
        """
        raise NotImplementedError

    def back_up(self, target: Path) -> None:
        """An online copy into a new file."""
        raise NotImplementedError

    def restore(self, copy: Path) -> RestoreReport:
        """Replace the database with a copy; the previous one is kept beside it."""
        raise NotImplementedError


class Engine:
    """One database, by URL. Creating the engine connects to nothing; opening a store does. It may be pickled."""

    url: str
    database: Database
    ownership: Ownership
    transactional: TransactionalInsert

    def preload(self) -> None:
        """Load the code of `claims` and `maintenance`, before forks: later, an upgrade may have replaced the files."""

    def about(self, job_id: int) -> tuple[Any, int | None]:
        """The `meta` of a job and its batch; None if it has none. Opens a connection of its own."""
        with closing(self.database.connect()) as connection:
            row = connection.row(connection.queries.about_job, {"id": job_id})
            return (None, None) if row is None else (decoded(row[0]), row[1] if isinstance(row[1], int) else None)

    def producer(self, patience: float | None = None, *, create: bool = True) -> Producer:
        """`patience`: seconds to wait for other writers. With `create`, a missing database is made."""
        raise NotImplementedError

    def claims(self, *, keep_done: bool = True) -> Claims:
        """Without `keep_done`, jobs may be deleted with success."""
        raise NotImplementedError

    def maintenance(self) -> MaintenanceStore:
        raise NotImplementedError

    def operations(self) -> Operations:
        """Only for a database that exists and has the current schema; any other is left untouched."""
        raise NotImplementedError

    def changes(self, *, ends: bool = False) -> ChangeFeed:
        """With `ends` the hints need only tell of jobs that end or change, otherwise of jobs that come."""
        raise NotImplementedError

    def move_end(self) -> MoveEnd:
        """This database as one side of a move. Raises NoTables, or StoreError for tables of another version."""
        raise NotImplementedError
