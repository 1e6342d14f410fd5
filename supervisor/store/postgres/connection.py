"""One connection to a server with our rules: explicit short transactions, one process, and never used again once it
has failed.
"""

from __future__ import annotations

import json
import os
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from types import TracebackType
from typing import Any

import psycopg
from psycopg.adapt import Buffer
from psycopg.pq import TransactionStatus
from psycopg.types.string import StrDumperUnknown

from supervisor.domain.errors import StoreError, StoreUnavailable
from supervisor.domain.settlement import Settlement
from supervisor.domain.text import LONGEST_DELAY
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.driver_errors import (
    PATIENCE,
    explained,
    is_lost,
    is_read_only,
    may_be_a_rows_fault,
    translated,
)
from supervisor.store.postgres.inserting import Inserted, insert_new, resolve_doubt
from supervisor.store.postgres.statements import QUERIES, named, register_arrays
from supervisor.store.sql import connection as sql
from supervisor.store.sql.connection import FORKS, Row, RowRefused
from supervisor.system import descriptors

MINIMUM_SERVER = 140000
LOCK_TIMEOUT = 5.0  # seconds that a statement waits for another's row
STATEMENT_TIMEOUT = 60.0  # seconds: none of ours takes so long
_IDLE_TIMEOUT = 10.0  # seconds that a transaction of a stopped process may hold its rows
# The server, too, must notice that we are gone (seconds, and a number), and keep an idle session otherwise.
_SESSION = {
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "idle_session_timeout": "0",
}
_FAILPOINTS = "SUPERVISOR_FAILPOINTS"
_SEARCH_PATH = re.compile(r"search_path=(\S+)")


_living: weakref.WeakSet[_Session] = weakref.WeakSet()


class _TextDumper(StrDumperUnknown):
    """A text of the server holds no NUL: one in the words of some error must not make a settlement impossible."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\0", "\ufffd") if "\0" in obj else obj)


class _Session:
    """The driver's connection, if there is one. It is closed with whatever uses it, also by the garbage collector."""

    def __init__(self) -> None:
        self.raw: psycopg.Connection[Row] | None = None
        self.generation = FORKS.count
        self.pooled = False  # whether a pooler stands before the server
        self._number = -1  # of its descriptor
        _living.add(self)
        FORKS.living.add(self)

    def open(self, raw: psycopg.Connection[Row]) -> psycopg.Connection[Row]:
        self.raw, self._number = raw, raw.fileno()
        descriptors.own(self._number)
        return raw

    def close(self) -> None:
        opened, self.raw = self.raw, None
        if opened is not None:
            descriptors.disown([self._number])  # the driver may have closed it already
            opened.close()

    def leave(self) -> object:
        """In a child that has inherited it: forget it. Returns what must never be closed there."""
        opened, self.raw = self.raw, None
        return opened


def own_sessions() -> set[int]:
    """The numbers of the sessions that this process uses for itself."""
    opened = [session.raw for session in list(_living)]
    return {raw.info.backend_pid for raw in opened if raw is not None and not raw.closed}


class Connection(sql.Connection):
    """A connection for one process and (apart from an outer lock) one thread. It connects at its first use, and again
    after it was lost.

    `durable` is meant for enqueues, whose loss loses work; without it a crash of the server may undo the last moments
    of commits. With `announce`, each transaction tells those that sleep. `patience` is how many seconds a statement
    waits for others; its error then says for whom.

    Behind a pooler each transaction may be carried out by another session, which others use before and after it. Then
    settings are made in each transaction, nothing is prepared, and no session is named.
    """

    queries = QUERIES
    insert = staticmethod(insert_new)

    def __init__(
        self, address: Address, *, durable: bool = True, announce: bool = False, patience: float = LOCK_TIMEOUT
    ) -> None:
        self.address = address
        self._announce = announce
        self._settings = {
            # What a role or a database may have set otherwise, and our statements rely on: each sees what has been
            # committed; times are equal to what they were; texts and lists mean what they say.
            "default_transaction_isolation": "read committed",
            "extra_float_digits": "1",
            "array_nulls": "on",
            "standard_conforming_strings": "on",
            # Compiling a query takes a second, and is thought to be worth it where a table was never analysed.
            "jit": "off",
            "lock_timeout": f"{patience * 1000:.0f}",
            "statement_timeout": f"{(STATEMENT_TIMEOUT + max(patience - LOCK_TIMEOUT, 0.0)) * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{_IDLE_TIMEOUT * 1000:.0f}",
            "synchronous_commit": "on" if durable else "off",
        }
        self._name = ""
        self._session = _Session()
        self.sessions = 0  # that were opened so far
        weakref.finalize(self, self._session.close).atexit = False

    @property
    def raw(self) -> psycopg.Connection[Row]:
        """The driver's connection, refused in a process that did not open it. Raises StoreError."""
        session = self._session
        if session.generation != FORKS.count:
            raise FORKS.refuse()
        opened = session.raw
        if opened is not None and not opened.closed and opened.pgconn.transaction_status == TransactionStatus.IDLE:
            return opened
        session.close()  # whoever used it was interrupted: what is asked for now would be part of that transaction
        self.sessions += 1
        return session.open(self._connect())

    @property
    def pooled(self) -> bool:
        """Whether a pooler stands before the server. Connects if necessary. Raises StoreError."""
        return self.raw is not None and self._session.pooled

    @property
    def lock_timeout(self) -> str | None:
        """Milliseconds, for a statement behind a pooler that is its own transaction; otherwise the session has it."""
        return self._settings["lock_timeout"] if self._session.pooled else None

    def be_patient(self, seconds: float | None) -> None:
        """For how long a statement waits for others from now on; None for as long as usual. Raises StoreError."""
        self._settings["lock_timeout"] = f"{max(LOCK_TIMEOUT if seconds is None else seconds, 0.001) * 1000:.0f}"
        if self._session.raw is not None and not self._session.pooled:
            with suppress(psycopg.Error):  # a lost connection; the next one begins with the settings
                self.raw.execute(f"SET lock_timeout = {self._settings['lock_timeout']}")

    @property
    def begin(self) -> str:
        """What begins a transaction."""
        made = [f"SET LOCAL {name.removeprefix('default_')} = '{value}'" for name, value in self._settings.items()]
        return "; ".join(["BEGIN", *made]) if self._session.pooled else "BEGIN"

    def _connect(self) -> psycopg.Connection[Row]:
        where = self.address.shown
        try:
            named = {"application_name": self._name} if self._name else {}
            given = self.address.options | named | {"client_encoding": "UTF8"}
            raw = _connection_type().connect("", autocommit=True, **given)
        except psycopg.Error as error:
            raise translated(error, where) from None
        try:
            if raw.info.server_version < MINIMUM_SERVER:
                version = raw.info.server_version // 10000
                raise StoreError(f"{where}: the server is PostgreSQL {version}; at least 14 is needed")
            encoding = raw.info.parameter_status("server_encoding")
            if encoding != "UTF8":
                raise StoreError(f"{where}: the database's encoding is {encoding}; only UTF8 is supported")
            raw.adapters.register_dumper(str, _TextDumper)
            register_arrays(raw)
            self._set_up(raw)
        except BaseException as error:
            raw.close()
            if isinstance(error, psycopg.Error):
                raise translated(error, where) from None
            raise
        return raw

    def _set_up(self, raw: psycopg.Connection[Row]) -> None:
        """A pooler welcomes its clients with a number of its own in place of the session's, which tells it."""
        welcomed = raw.info.backend_pid
        settings = json.dumps(self._settings | _SESSION)
        row = raw.execute(QUERIES.open_session, {"backend": welcomed, "settings": settings}).fetchone()
        assert row is not None
        self._session.pooled = pooled = row[0] != welcomed
        if pooled:
            raw.prepare_threshold = None
            if row[2] != self._settings["default_transaction_isolation"]:
                raise StoreError(
                    f"{self.address.shown}: behind a pooler, transactions must be read committed by default: "
                    "ALTER ROLE … SET default_transaction_isolation = 'read committed'"
                )
            wanted = _SEARCH_PATH.search(str(self.address.options.get("options", "")))
            if wanted and wanted[1] != row[1].replace(" ", ""):
                raise StoreError(
                    f"{self.address.shown}: the pooler does not pass on the URL's options; leave them out, and set the "
                    f"search path of the role: ALTER ROLE … SET search_path = {wanted[1]}"
                )

    def belong_to(self, worker: str) -> None:
        """From now on its sessions can be found by the worker's name, see `session_of`."""
        self._name = session_of(worker)
        if not self.pooled:
            self.rows(QUERIES.name_session, {"session": self._name})

    def rows(self, sql: str, parameters: Any = ()) -> list[Row]:
        """Run one statement outside a transaction of ours and fetch all of it; once more on a fresh connection if the
        one that there was has been lost meanwhile. So it must be one that may be run twice.
        """
        while True:
            fresh = self._session.raw is None
            try:
                return self._fetched(sql, parameters)
            except psycopg.Error as error:
                self.drop_if_lost(error)
                if fresh or not is_lost(error):
                    raise translated(error, self.address.shown) from None

    def _fetched(self, sql: str, parameters: Any) -> list[Row]:
        raw = self.raw
        if not self._session.pooled:
            return raw.execute(sql, named(parameters)).fetchall()
        raw.execute(self.begin)
        try:
            found = raw.execute(sql, named(parameters)).fetchall()
        except psycopg.Error:
            with suppress(psycopg.Error):
                raw.execute("ROLLBACK")
            raise
        raw.execute("COMMIT")
        return found

    def syncing(self, whether: bool) -> AbstractContextManager[None]:
        return nullcontext()  # the session has settled it

    def write(self) -> Transaction:
        """One short write transaction: commits at the end, rolls back on any exception."""
        return Transaction(self, announce=self._announce)

    def check(self) -> None:
        """Raises StoreError if the server cannot be reached."""
        self.rows("SELECT 1")

    def check_writable(self) -> None:
        """Raises StoreError if the server cannot be reached, or is a standby or otherwise read-only."""
        if self.rows(QUERIES.read_only) == [(True,)]:
            self.close()  # the next one may lead to another server, and what a session has been told stays in it
            hint = "a standby? name the primary, or add target_session_attrs=read-write to the URL"
            raise StoreUnavailable(f"{self.address.shown}: the server is read-only; {hint}")

    def explained(self, error: psycopg.Error | UnicodeEncodeError, sql: str, parameters: Any) -> StoreError:
        """What an error of this statement means, also who held the lock that it has waited for."""
        found = translated(error, self.address.shown)
        if not isinstance(error, psycopg.errors.LockNotAvailable):
            return found
        with suppress(StoreError, psycopg.Error):
            if not self.pooled:  # a pooler hides the session that waits
                with closing(Connection(self.address, durable=False, patience=PATIENCE)) as another:
                    return explained(found, self, another.raw, own_sessions(), sql, parameters)
        return found

    def drop_if_lost(self, error: BaseException) -> None:
        """A connection that has failed once is never used again, nor is one whose transaction is still open, or one to
        a server that has become read-only: another one may lead elsewhere.
        """
        opened = self._session.raw
        open_still = opened is not None and opened.pgconn.transaction_status != TransactionStatus.IDLE
        if open_still or is_lost(error) or is_read_only(error):
            self.close()

    def close(self) -> None:
        """Also of a connection that has failed: the next use opens another one."""
        self._session.close()


class Transaction:
    """Implements `store.sql.connection.Transaction`, as a context manager."""

    def __init__(self, connection: Connection, *, announce: bool) -> None:
        self._connection = connection
        self._announce = announce
        self.inserted: Inserted | None = None  # as told by an INSERT
        self.settled: list[Settlement] = []  # those with gates, jobs after them, or a batch
        self._latest: tuple[str, Any] = "", None

    def __enter__(self) -> Transaction:
        connection = self._connection
        self._raw = connection.raw
        try:
            self._raw.execute(connection.begin)
        except psycopg.Error as error:
            connection.drop_if_lost(error)
            if not is_lost(error):
                raise translated(error, connection.address.shown) from None
            self._raw = connection.raw  # it was lost while nobody used it
            try:
                self._raw.execute(connection.begin)
            except psycopg.Error as again:
                connection.close()
                raise translated(again, connection.address.shown) from None
        return self

    def execute(self, sql: str, parameters: Any = (), /) -> psycopg.Cursor[Row]:
        self._latest = sql, (values := named(parameters))
        return self._raw.execute(sql, values)

    def executemany(self, sql: str, parameters: Iterable[Mapping[str, Any]], /) -> psycopg.Cursor[Row]:
        cursor = self._raw.cursor()
        cursor.executemany(sql, list(parameters))
        return cursor

    def take_settled(self) -> dict[str, Sequence[float]]:
        """Settled jobs from which something follows, for the one statement of a transaction that sees to that."""
        settled, self.settled = self.settled, []
        paused = [s for s in settled if s.pause > 0]
        return {
            "others": [s.job_id for s in settled],
            "charged": [s.job_id for s in settled if s.attempts >= 0],
            "paused": [s.job_id for s in paused],
            "pauses": [min(s.pause, LONGEST_DELAY) for s in paused],
        }

    def copy_rows(self, sql: str, rows: Iterable[Row]) -> None:
        """`COPY … FROM STDIN`."""
        with self._raw.cursor().copy(sql) as copy:
            for row in rows:
                copy.write_row(row)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, stack: TracebackType | None
    ) -> None:
        connection = self._connection
        if error is None:
            try:
                if self.settled:
                    self.execute(QUERIES.go_on, self.take_settled())
                if self._announce:
                    self._raw.execute(QUERIES.announce)
                self._raw.execute("COMMIT")
            except psycopg.Error as refused:
                error = refused
                if is_lost(refused):
                    connection.close()
                    resolve_doubt(connection, connection.address.shown, self.inserted, refused)
                    return
            else:
                return
        self._undo(error)
        if may_be_a_rows_fault(error):
            raise RowRefused(str(error).strip().partition("\n")[0]) from None
        if isinstance(error, psycopg.Error):
            raise connection.explained(error, *self._latest) from None

    def _undo(self, error: BaseException) -> None:
        try:
            if not self._raw.closed:
                self._raw.execute("ROLLBACK")
        except psycopg.Error:
            self._connection.close()
        self._connection.drop_if_lost(error)


def session_of(worker: str) -> str:
    """What the server shows of its connections: the end of a long name, since that differs."""
    return f"job-supervisor {worker}"[-63:]


def _connection_type() -> type[psycopg.Connection[Any]]:
    """The driver's own, or for tests one with fail-points."""
    if _FAILPOINTS not in os.environ:
        return psycopg.Connection
    from supervisor.store.postgres.failing import postgres_type

    return postgres_type(QUERIES.statements)
