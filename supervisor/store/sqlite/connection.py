"""One SQLite connection with our rules: WAL, explicit short transactions, one process.

The driver is the standard library's: handlers open the same file in the same process, and two SQLite
libraries in one process break each other's file locks.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

from supervisor.domain.errors import StoreError
from supervisor.domain.job import covers, next_candidate
from supervisor.store.sql import connection as sql
from supervisor.store.sql.connection import FORKS, RowRefused
from supervisor.store.sql.connection import Row as Row
from supervisor.store.sqlite.driver_errors import BUSY_TIMEOUT, is_busy, is_general, may_be_a_rows_fault, translated
from supervisor.store.sqlite.files import DatabaseFiles, uri
from supervisor.store.sqlite.inserting import QUERIES as QUERIES
from supervisor.store.sqlite.inserting import gates, insert_new
from supervisor.store.sqlite.writelock import PATIENCE, WriteLock

_SLICE = 100  # moves that one statement sees to
_LONGEST = 0.02  # seconds for which one transaction does so for others; the maintainer goes on

_TURN = 0.003  # seconds per attempt while polling for the lock

_CHECKPOINT_PAGES = 1000  # SQLite's own default
_FAILPOINTS = "SUPERVISOR_FAILPOINTS"

Synchronous = Literal["FULL", "NORMAL"]
Answer = TypeVar("Answer")


class Connection(sql.Connection):
    """A connection for one process and (apart from an outer lock) one thread.

    `synchronous` is FULL for enqueues, whose loss loses work, and NORMAL for claims and completions,
    whose loss only repeats it. Checkpoints are the maintainer's unless `checkpoints` is set.
    """

    queries = QUERIES
    insert = staticmethod(insert_new)

    def __init__(
        self,
        files: DatabaseFiles,
        *,
        synchronous: Synchronous,
        checkpoints: bool = False,
        create: bool = False,
        any_thread: bool = False,
    ) -> None:
        self.files = files
        self.polls = 0.0  # seconds for which a statement is retried while another program writes
        self.has_gates = False  # whether the triggers are there that let jobs pass
        self._synchronous = synchronous
        self._generation = FORKS.count
        self._raw = self._open(create, any_thread)
        FORKS.living.add(self)
        try:
            self._raw.create_function("covers", 2, _covers, deterministic=True)
            self._raw.create_function("next_kind", 2, _next_kind, deterministic=True)
            for pragma in (f"synchronous = {synchronous}", "foreign_keys = ON", "temp_store = MEMORY"):
                self._raw.execute(f"PRAGMA {pragma}")
            self.checkpoint_itself(checkpoints)
            self._lock = WriteLock(files)
            self._transaction = Transaction(self, self._lock)
        except sqlite3.Error as error:
            self._raw.close()
            raise translated(error, files.database) from None
        except StoreError:
            self._raw.close()
            raise

    def _open(self, create: bool, any_thread: bool) -> sqlite3.Connection:
        driver = _connection_type()
        self.files.refuse_strange_folder()  # before anything is created
        if self.files.pinned not in (None, self.files.identity()):
            raise self.files.gone()
        new = not self.files.database.exists()
        if new and not create:
            raise self.files.missing()
        if new:
            self._make_private()
        self._identity = (
            self.files.pinned or self.files.identity()
        )  # before: one that is replaced meanwhile is another one
        try:
            raw = sqlite3.connect(
                uri(self.files.database, "rw"),
                uri=True,
                timeout=BUSY_TIMEOUT,
                isolation_level=None,
                cached_statements=256,
                check_same_thread=not any_thread,
                factory=driver,
            )
        except sqlite3.Error as error:
            raise translated(error, self.files.database) from None
        # Rows come from any program: invalid UTF-8 must reach us as bytes, not as an exception.
        raw.text_factory = _text
        try:
            self._use_wal(raw)
        except StoreError:
            raw.close()
            raise
        return raw

    def _use_wal(self, raw: sqlite3.Connection) -> None:
        """Switch the file to write-ahead logging if necessary. SQLite does not wait for others here, so we do."""

        def switch() -> None:
            if raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                raw.execute("PRAGMA auto_vacuum = INCREMENTAL")  # for a file that is made now; others stay as they are
                raw.execute("PRAGMA journal_mode = WAL").fetchone()

        self.insisting(switch, pause=0.005)

    def _make_private(self) -> None:
        """A new database is readable only by its owner; SQLite gives -wal and -shm the same mode."""
        try:
            descriptor = os.open(
                self.files.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, stat.S_IRUSR | stat.S_IWUSR
            )
            os.close(descriptor)
        except OSError as error:
            folder = self.files.database.parent
            why = error.strerror if folder.exists() else f"there is no folder {folder}"
            raise StoreError(f"{self.files.database}: cannot be created: {why}") from None

    @property
    def raw(self) -> sqlite3.Connection:
        """The driver's connection, refused in a process that did not open it."""
        if self._generation != FORKS.count:
            raise FORKS.refuse()
        return self._raw

    def leave(self) -> object:
        """In a child that has inherited it."""
        return self._raw

    def checkpoint_itself(self, whether: bool) -> None:
        """Whether commits of this connection checkpoint a log of 4 MB or more."""
        self.raw.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES if whether else 0}")

    @contextmanager
    def syncing(self, whether: bool) -> Iterator[None]:
        """Whether commits are synced meanwhile, which takes a millisecond."""
        level = "FULL" if whether else "NORMAL"
        if level == self._synchronous:
            yield
            return
        self.raw.execute(f"PRAGMA synchronous = {level}")
        try:
            yield
        finally:
            self.raw.execute(f"PRAGMA synchronous = {self._synchronous}")

    def poll(self, patience: float) -> None:
        """From now on wait so many seconds for foreign writers, by polling every few milliseconds. SQLite's own pauses
        grow to 100 ms, with which a writer rarely gets a turn beside a program that writes one short transaction after
        the other.
        """
        self.raw.execute(f"PRAGMA busy_timeout = {_TURN * 1000:.0f}")
        self.polls = patience
        self._lock.patience = min(PATIENCE, patience)

    def be_patient(self, seconds: float | None) -> None:
        """Wait so long for other writers from now on, for their queue as for the file; None: as long as usual."""
        self.raw.execute(f"PRAGMA busy_timeout = {(BUSY_TIMEOUT if seconds is None else seconds) * 1000:.0f}")
        self._lock.patience = PATIENCE if seconds is None else min(PATIENCE, seconds)

    def version(self) -> int:
        """Changes whenever another connection has committed. Costs microseconds."""
        row = self.row("PRAGMA data_version")
        return int(row[0]) if row else 0

    def rows(self, sql: str, parameters: Any = ()) -> list[Row]:
        """Run one statement outside a transaction of ours and fetch all of it."""
        raw = self.raw
        try:
            return raw.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            if self.polls and is_busy(error):
                return self.insisting(lambda: raw.execute(sql, parameters).fetchall())
            raise translated(error, self.files.database) from None

    def insisting(self, run: Callable[[], Answer], pause: float = _TURN / 10) -> Answer:
        """Retry a statement that another writer blocked, for as long as SQLite would have tried."""
        deadline = time.monotonic() + (self.polls or BUSY_TIMEOUT)
        while True:
            try:
                return run()
            except sqlite3.Error as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise translated(error, self.files.database, producer=self.polls > 0) from None
            time.sleep(pause)  # SQLite has usually waited; not for a deadlock

    def write(self) -> Transaction:
        """One short write transaction: commits at the end, rolls back on any exception."""
        return self._transaction

    def pass_gates(self) -> int:
        for limit in (_SLICE, 1, 0):  # fewer if a rule of the application has rolled back everything
            with suppress(RowRefused), self._transaction:
                return self._transaction.pass_gates(-1, limit)
        return 0

    @contextmanager
    def exclusive_writers(self) -> Iterator[sqlite3.Connection]:
        """Keep our writers out without a transaction: for checkpoints."""
        raw = self.raw
        self._lock.acquire()
        try:
            self.check()
            yield raw
        except sqlite3.Error as error:
            raise translated(error, self.files.database) from None
        finally:
            self._lock.release()

    def check(self) -> None:
        """Raises StoreGone if the database's name no longer leads to the open file: writes would be lost."""
        if self.moved:
            raise self.files.gone()

    @property
    def moved(self) -> bool:
        return self.files.identity() != self._identity

    def yield_to_others(self) -> None:
        """Make all our writers leave the write lock free for a larger share of the time."""
        self._lock.yield_to_others()

    def close(self) -> None:
        if self._generation == FORKS.count:
            self._raw.close()
            self._lock.close()


class Transaction:
    """The write transactions of one connection, one after another. A class, because thousands are run per second."""

    __slots__ = ("_connection", "_counted", "_lock", "_raw")

    def __init__(self, connection: Connection, lock: WriteLock) -> None:
        self._connection = connection
        self._lock = lock
        self._raw = connection.raw
        self._counted = 0

    def __enter__(self) -> sqlite3.Connection:
        raw = self._connection.raw
        self._lock.acquire()
        try:
            self._begin(raw)
            self._connection.check()
        except BaseException as error:
            try:
                if raw.in_transaction:
                    raw.execute("ROLLBACK")
            finally:
                self._lock.release()
            if isinstance(error, sqlite3.Error):
                raise translated(error, self._connection.files.database) from None
            raise
        self._counted = raw.total_changes
        return raw

    def pass_gates(self, changed: int, limit: int = _SLICE) -> int:
        """If triggers have noted moves, since more than `changed` rows have changed, let jobs pass the gates: after so
        many moves at a time; with 1 only after the first, with 0 without what that leads to.

        Returns how many moves.
        """
        raw, passed, alone = self._raw, 0, limit <= 1
        if (ours := raw.total_changes - self._counted) > changed:
            self._make_gates(raw)
            until = time.monotonic() + _LONGEST
            while passed < max(_SLICE, ours) or time.monotonic() < until:
                try:  # what is refused alone would be for ever; a sweep tries again what it was about
                    moves = raw.execute(QUERIES.pass_gates if limit else QUERIES.drop_move, {"limit": limit}).rowcount
                except sqlite3.IntegrityError:
                    if alone or not limit or not raw.in_transaction:
                        raise
                    limit = int(limit > 1)
                    continue
                passed += moves
                if alone or moves < 1:
                    break
                limit = limit or 1
        self._counted = raw.total_changes
        return passed

    def _make_gates(self, raw: sqlite3.Connection) -> None:
        if not self._connection.has_gates:
            for statement in gates():
                raw.execute(statement)
            self._connection.has_gates = True

    def _begin(self, raw: sqlite3.Connection) -> None:
        try:
            raw.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if not self._connection.polls or not is_busy(error):
                raise
            self._connection.insisting(lambda: raw.in_transaction or raw.execute("BEGIN IMMEDIATE"))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, stack: object) -> None:
        raw = self._raw
        try:
            if error is not None:
                self._connection.has_gates = False  # they may be of this transaction
            elif raw.in_transaction:
                self.pass_gates(1)  # the first change of a row is not a trigger's
                raw.execute("COMMIT")
        except sqlite3.Error as refused:
            self._connection.has_gates = False
            error = refused
        finally:
            try:
                if raw.in_transaction:
                    raw.execute("ROLLBACK")
            finally:
                self._lock.release()
        if error is not None and may_be_a_rows_fault(error) and (not is_general(error) or _fits(raw)):
            raise RowRefused(str(error)) from None
        if isinstance(error, sqlite3.Error):
            raise translated(error, self._connection.files.database) from None


def compile_changes(raw: sqlite3.Connection) -> None:
    """Raises the driver's error if statements that change jobs, or their triggers, do not fit the schema: EXPLAIN
    compiles both.
    """
    for name in ("claim_ids", "settle", "set_aside", "insert_error", "insert_run", "insert_job"):
        raw.execute(f"EXPLAIN {QUERIES.statements[name]}", defaultdict(lambda: None)).close()


def _fits(raw: sqlite3.Connection) -> bool:
    """Whether they do: then an error came from the contents of a row."""
    try:
        compile_changes(raw)
    except sqlite3.Error:
        return False
    return True


def _connection_type() -> type[sqlite3.Connection]:
    """The driver's own, or for tests one with fail-points."""
    if _FAILPOINTS not in os.environ:
        return sqlite3.Connection
    from supervisor.store.failing import sqlite_type

    return sqlite_type(QUERIES.statements)


def _text(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def _covers(capabilities: str, requires: bytes) -> bool:
    """For SQL, which passes bytes: a text that is not UTF-8, written past the table's CHECK, would be an error of the
    whole statement. No worker meets it.
    """
    try:
        return covers(capabilities, requires.decode())
    except UnicodeDecodeError:
        return False


def _next_kind(capabilities: str, requires: bytes) -> bytes:
    """For SQL: the next requirements to look for after these; unreadable ones are followed by the next in order."""
    try:
        return next_candidate(capabilities, requires.decode()).encode()
    except UnicodeDecodeError:
        return requires + b"\0"
