"""Every named statement is a fail-point, whatever the engine: for tests, see system/failpoints.py.

The statement `settle` offers `settle.before`, `settle` (it has run; a transaction may still be open) and
`settle.committed` (so is the transaction that it was part of; without one, that is at once). An error at the
first means that it has not run, at the second that the transaction is rolled back, at the last that the answer
of the commit was lost. What has no name in queries.sql, such as `begin` and `commit`, offers the first two.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.system import failpoints

# Statements that are not in queries.sql, by their text.
OTHERS = {
    "BEGIN IMMEDIATE": "begin",
    "BEGIN": "begin",
    "COMMIT": "commit",
    "PRAGMA data_version": "data_version",
    "PRAGMA wal_checkpoint(PASSIVE)": "wal_checkpoint",
    "PRAGMA wal_checkpoint(TRUNCATE)": "wal_truncate",
    "PRAGMA journal_mode": "open",
}
# SQLite's message and code.
CODES = {
    "busy": ("database is locked", sqlite3.SQLITE_BUSY),
    "full": ("database or disk is full", sqlite3.SQLITE_FULL),
    "error": ("disk I/O error", sqlite3.SQLITE_IOERR),
    "integrity": ("refused by a trigger", sqlite3.SQLITE_CONSTRAINT),
}


class Failing:
    """A connection with fail-points. `places` are what it passes, by the texts of statements, and `uncommitted` what
    has run in the open transaction.
    """

    places: Mapping[str, str]
    uncommitted: list[str]

    def reach(self, place: str) -> None:
        """Does nothing unless a test has asked for it; otherwise raises what is to happen there."""
        raise NotImplementedError

    def is_in_transaction(self) -> bool:
        raise NotImplementedError

    def around(self, sql: str, execute: Callable[[], object]) -> None:
        """Run a statement, with its fail-points before and after."""
        sql = "BEGIN" if sql.startswith("BEGIN;") else sql  # with settings
        place = self.places.get(_start(sql))
        if not self.is_in_transaction():
            self.uncommitted = []  # of a transaction that an error has ended
        if place is not None:
            self.reach(f"{place}.before")
        execute()
        if place is not None:
            self.reach(place)
            self.uncommitted += [place] if place not in OTHERS.values() else []
        if not self.is_in_transaction():
            ran, self.uncommitted = dict.fromkeys(self.uncommitted), []
            for one in () if sql.startswith("ROLLBACK") else ran:
                self.reach(f"{one}.committed")


class FailingCursor:
    """Mixed into a driver's cursor."""

    connection: Any

    def execute(self, sql: Any, *parameters: Any, **options: Any) -> Any:
        return self._around(sql, lambda: super(FailingCursor, self).execute(sql, *parameters, **options))  # type: ignore[misc]

    def executemany(self, sql: Any, *parameters: Any, **options: Any) -> Any:
        return self._around(sql, lambda: super(FailingCursor, self).executemany(sql, *parameters, **options))  # type: ignore[misc]

    def _around(self, sql: Any, execute: Callable[[], object]) -> FailingCursor:
        if not isinstance(self.connection, Failing) or not isinstance(sql, str):
            execute()
            return self
        try:
            self.connection.around(sql, execute)
        except BaseException:
            self.close()  # type: ignore[attr-defined]  # as after an error of the driver's own, the statement is over
            raise
        return self


def sqlite_type(statements: Mapping[str, str]) -> type[sqlite3.Connection]:
    """The class to connect with."""

    class Cursor(FailingCursor, sqlite3.Cursor):
        pass

    class Connection(Failing, sqlite3.Connection):
        """Not every version of the driver creates cursors by `cursor`, so everything that executes is overridden."""

        places = places_of(statements)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.uncommitted = []

        def cursor(self, factory: Any = None) -> Any:
            return super().cursor(Cursor if factory is None else factory)

        def execute(self, *arguments: Any) -> Any:
            return Cursor(self).execute(*arguments)

        def executemany(self, *arguments: Any) -> Any:
            return Cursor(self).executemany(*arguments)

        def is_in_transaction(self) -> bool:
            return self.in_transaction

        def reach(self, place: str) -> None:
            failpoints.reach(place, lambda kind: _sqlite_error(*CODES[kind]) if kind in CODES else None)

    return Connection


def places_of(statements: Mapping[str, str]) -> dict[str, str]:
    """The first statement of a new connection to a server has the place `open`, as SQLite's has."""
    return {_start(text): "open" if name == "open_session" else name for name, text in statements.items()} | OTHERS


def _start(sql: str) -> str:
    """What tells a statement from all others, whatever columns are added to it."""
    return sql.partition("/*columns*/")[0]


def _sqlite_error(message: str, code: int) -> sqlite3.Error:
    """With SQLite's result code, which distinguishes errors."""
    error = (sqlite3.IntegrityError if code == sqlite3.SQLITE_CONSTRAINT else sqlite3.OperationalError)(message)
    error.sqlite_errorcode = code
    return error
