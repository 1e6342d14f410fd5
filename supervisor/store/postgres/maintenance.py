"""What the maintainer and operators work with, and the duties of a server: reaching it, and VACUUM of our tables where
autovacuum does not come, or too late.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg.pq import ExecStatus

from supervisor.domain.dead_rows import Keeper, TableRows, strongest, worth
from supervisor.domain.duty import Duty, Needs, Result
from supervisor.domain.job import Status
from supervisor.store.postgres.address import Address
from supervisor.store.postgres.backlog import PostgresBacklog
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.driver_errors import translated
from supervisor.store.postgres.ownership import PostgresClaimLocks, PostgresRegistry
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Row
from supervisor.store.sql.statistics import ServerState, Statistics
from supervisor.store.sql.stores import EventLog, MaintenanceStore, Operations


def operations(connection: Connection) -> Operations:
    return Operations(connection, PostgresRegistry(connection), PostgresStatistics(connection))


_PATIENCE = 0.5  # seconds that it waits for a row: as long, nobody is woken


class PostgresMaintenance(MaintenanceStore):
    _connection: Connection

    def __init__(self, address: Address, direct: Address) -> None:
        """`direct` leads to the server itself, if that is known."""
        self._direct = direct
        connection = Connection(address, announce=True, patience=_PATIENCE)
        registry, locks = PostgresRegistry(connection, patient=True), PostgresClaimLocks(connection)
        super().__init__(connection, registry, locks, PostgresBacklog(connection))
        self._vacuum: Vacuum | None = None

    def duties(self, log: EventLog, *, vacuum: bool = True) -> Sequence[Duty]:
        if not vacuum:
            return (ServerCheck(self._connection),)
        self._vacuum = Vacuum(self._connection, Connection(self._direct, patience=_PATIENCE), log)
        return ServerCheck(self._connection), self._vacuum

    def close(self) -> None:
        if self._vacuum is not None:
            self._vacuum.close()
        self._connection.close()


class ServerCheck(Duty):
    """Checks that the server can be reached and written: for a supervisor that has nothing to write."""

    name = "server"
    every = 1.0  # seconds
    needs = Needs.NOTHING
    quiet = True

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, now: float) -> Result:
        """Raises StoreUnavailable if it cannot."""
        self._connection.check_writable()
        return Result()


LOOK = 60.0  # seconds between two looks at the statistics
LONGEST = 600.0  # seconds after which the server ends one
_POLL = 1.0  # seconds between two looks at one that runs
_CANCEL = 2.0  # seconds; whoever cannot be reached notices by itself that we are gone
_REST = 20  # the time to the next one, on any host, is so many times what this one took
_SHORTEST_REST = 300.0  # seconds


@dataclass(slots=True)
class _Running:
    connection: psycopg.Connection[Row]
    table: TableRows
    began: float  # monotonic


class Vacuum(Duty):
    """Makes one at a time on all hosts together, on a connection of its own, and never waits for it: a run of this duty
    begins it, later ones look whether it has ended. A lock of its session says that one is being made, a row when the
    next one may be. It gives way: it skips a table that somebody has locked, and rests like autovacuum.
    """

    name = "vacuum"
    needs = Needs.WRITING
    quiet = True

    def __init__(self, connection: Connection, own: Connection, log: EventLog) -> None:
        self.every = LOOK
        self._connection = connection
        self._own = own
        self._log = log
        self._running: _Running | None = None
        self._warned = ""

    def run(self, now: float) -> Result:
        if self._running is None:
            table = worth(tables_of(self._connection))
            if table is not None and not self._in_vain(table):
                self._begin(table)
        else:
            self._look(self._running)
        self.every = LOOK if self._running is None else _POLL
        return Result()

    def _in_vain(self, table: TableRows) -> bool:
        """Whether it would free nothing: then there is a warning, once for each cause."""
        keeper = strongest(keepers_of(self._connection))
        if keeper is None or not keeper.long:
            self._warned = ""
            return False
        if keeper.who != self._warned:
            self._warned = keeper.who
            hint = "dead rows stay until that has ended, and claims become slower"
            self._log.warning("vacuum_in_vain", table=table.name, dead=table.dead, kept_by=keeper.who, hint=hint)
        return True

    def _begin(self, table: TableRows) -> None:
        try:
            raw = self._own.raw
            if self._own.pooled:  # a session of its own is not to be had
                self._own.close()
                return
            raw.execute(QUERIES.vacuum_settings)
            [(locked,)] = raw.execute(QUERIES.vacuum_lock).fetchall()
            if not (locked and raw.execute(QUERIES.vacuum_turn, {"seconds": LONGEST}).rowcount):
                self._own.close()
                return
            raw.pgconn.send_query(QUERIES.vacuum.replace("%(table)s", table.name).encode())
        except psycopg.Error as error:
            self._own.close()
            raise translated(error, self._own.address.shown) from None
        self._running = _Running(raw, table, time.monotonic())

    def _look(self, running: _Running) -> None:
        """Take in the result, if there is one."""
        link, problem = running.connection.pgconn, ""
        try:
            link.consume_input()
            if link.is_busy():
                return
            while (result := link.get_result()) is not None:
                if result.status != ExecStatus.COMMAND_OK:
                    problem = " ".join((result.error_message or b"").decode("utf-8", "replace").split())
        except psycopg.Error as error:
            problem = " ".join(str(error).split())
        took = time.monotonic() - running.began
        self._running = None
        self._own.close()
        self._connection.apply(QUERIES.vacuum_rest, {"seconds": max(_SHORTEST_REST, _REST * took)})
        about = {"table": running.table.name, "dead": running.table.dead, "seconds": round(took, 1)}
        if problem:
            self._log.warning("vacuum_failed", error=problem, **about)
        else:
            self._log.info("vacuumed", **about)

    def close(self) -> None:
        """End one that runs."""
        running, self._running = self._running, None
        if running is not None:
            with suppress(psycopg.Error):
                running.connection.cancel_safe(timeout=_CANCEL)
        self._own.close()


def tables_of(connection: Connection) -> list[TableRows]:
    return [TableRows(*row) for row in connection.rows(QUERIES.table_rows)]


def keepers_of(connection: Connection) -> list[Keeper]:
    """What keeps dead rows from being removed: of each kind the strongest."""
    return [Keeper(*row) for row in connection.rows(QUERIES.keepers)]


_COUNTED = 2_000_000  # rows that are read to count them


class PostgresStatistics(Statistics):
    """With those of the server; of a large table counts are estimates."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, lambda: 0)

    def now(self) -> float:
        [(now,)] = self._connection.rows(QUERIES.clock)
        return float(now)

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        """Estimates where the table is large."""
        rows = self._connection.rows(QUERIES.count_closed, {"most": _COUNTED})
        return [(type_, Status(status), count) for type_, status, count in rows]

    def server(self) -> ServerState | None:
        """Raises StoreError."""
        [row] = self._connection.rows(QUERIES.server_state)
        rows, keepers = tables_of(self._connection), keepers_of(self._connection)
        powerless = tuple(name for (name,) in self._connection.rows(QUERIES.powerless))
        return ServerState._make((*row, tuple(rows), tuple(keepers), self._connection.pooled, powerless))
