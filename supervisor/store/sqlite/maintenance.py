"""What the maintainer works with, and SQLite's own duties: its file, its log, its one writer at a time."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.duty import Duty, Needs, Result
from supervisor.store.sql.backlog import Backlog
from supervisor.store.sql.claims import ClaimLocks
from supervisor.store.sql.stores import EventLog, MaintenanceStore
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.store.sqlite.producer import registry


class SqliteMaintenance(MaintenanceStore):
    _connection: Connection

    def __init__(self, files: DatabaseFiles) -> None:
        connection = Connection(files, synchronous="NORMAL")
        super().__init__(connection, registry(connection), ClaimLocks(connection), Backlog(connection))

    def duties(self, log: EventLog) -> Sequence[Duty]:
        own = FileCheck, ForeignWriterMonitor, FreePages
        return *(duty(self._connection) for duty in own), Checkpointer(self._connection, log)

    def flush(self) -> None:
        checkpoint(self._connection)


ALARM = 256 << 20  # bytes of log: a reader must have been holding a snapshot for minutes
_WORTHWHILE = 4 << 20  # bytes
_LARGE = 64 << 20  # bytes: a log file that has grown beyond this is truncated
_INCREMENTAL = 2  # of PRAGMA auto_vacuum: of a file that we have made
_KEPT = 4096  # free pages that a file may have, 16 MiB
_AT_ONCE = 500  # pages, some milliseconds


class FileCheck(Duty):
    """Checks that the file is there, which every write does, too: for a supervisor that has nothing to write."""

    name = "database file"
    every = 1.0  # seconds
    needs = Needs.NOTHING
    quiet = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, now: float) -> Result:
        """Raises StoreGone if it is not."""
        self._connection.check()
        return Result()


class ForeignWriterMonitor(Duty):
    """Checks whether jobs are being inserted, and if so makes our writers leave more of the time to other programs."""

    name = "foreign writers"
    every = 60.0  # seconds, when nothing changes
    rest = 0.6
    quiet = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._inserted: int | None = None

    def run(self, now: float) -> Result:
        inserted = inserted_so_far(self._connection)
        writing = self._inserted is not None and inserted > self._inserted
        if writing:
            self._connection.yield_to_others()
        self._inserted = inserted
        return Result(int(writing))


class FreePages(Duty):
    """Gives the file system back what pruning has left free beyond a quarter of the file, a few pages at a time."""

    name = "free pages"
    every = 60.0
    rest = 5.0
    needs = Needs.WRITING
    quiet = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, now: float) -> Result:
        free, pages, mode = self._connection.row(QUERIES.pages) or (0, 0, 0)
        given_back = min(free - max(_KEPT, pages // 4), _AT_ONCE)
        if mode != _INCREMENTAL or given_back <= 0:
            return Result()
        with self._connection.write() as raw:
            raw.execute(f"PRAGMA incremental_vacuum({given_back})").fetchall()
        return Result(given_back)


class Checkpointer(Duty):
    """The only one that checkpoints while a supervisor runs: under the writers' lock, never blocking readers.

    SQLite before 3.51.3 has a rare corruption bug when connections write and checkpoint at the same time; keeping our
    writers out meanwhile reduces the risk.
    """

    name = "checkpoints"
    every = 1.0
    needs = Needs.WRITING
    quiet = True

    def __init__(self, connection: Connection, log: EventLog) -> None:
        self._connection = connection
        self._log = log
        self._version = -1
        self._size = 0
        self._alarmed = False

    def run(self, now: float) -> Result:
        """Checkpoint what was committed since the last time, if there is enough of it or nobody is writing."""
        version, size = self._connection.version(), self._connection.files.log_size()
        if version == self._version and self._size == 0:
            return Result()
        quiet = version == self._version
        worth_it = quiet or size >= _WORTHWHILE
        if worth_it:
            left = checkpoint(self._connection)
            self._warn(size, left)
            if left == 0 and (size <= _LARGE or self._truncate(size)) and quiet:
                size = 0
        self._version, self._size = version, size
        return Result(int(worth_it))

    def _truncate(self, size: int) -> bool:
        done = truncate_log(self._connection)
        if done:
            self._log.info("log_truncated", bytes=size)
        return done

    def _warn(self, size: int, left: int) -> None:
        if size > ALARM and left and not self._alarmed:
            hint = "a program keeps a read transaction open: `supervisor doctor` names it"
            self._log.warning("log_grows", bytes=size, hint=hint)
        self._alarmed = size > ALARM and left > 0


def checkpoint(connection: Connection) -> int:
    """Copy the log into the database as far as readers allow. Returns the frames still in the log."""
    with connection.exclusive_writers() as raw:
        _, frames, copied = raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return max(0, int(frames) - int(copied))


def truncate_log(connection: Connection) -> bool:
    """Truncate a log that has been copied completely; False if it is being read or written at this moment."""
    with connection.exclusive_writers() as raw:
        connection.be_patient(0.0)
        try:
            busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            connection.be_patient(None)
    return not busy


def inserted_so_far(connection: Connection) -> int:
    """How many jobs were ever inserted, by any program."""
    row = connection.row(QUERIES.inserted)
    return int(row[0]) if row else 0
