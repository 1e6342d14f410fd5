"""A connection on which every named statement is a fail-point, see supervisor/store/sql/failing.py: for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from typing import Any, Self

from supervisor.store.sql.failing import Passages
from supervisor.system import failpoints

# Statements that are not in queries.sql, by their text.
OTHERS = {
    "BEGIN IMMEDIATE": "begin",
    "COMMIT": "commit",
    "PRAGMA data_version": "data_version",
    "PRAGMA wal_checkpoint(PASSIVE)": "wal_checkpoint",
    "PRAGMA wal_checkpoint(TRUNCATE)": "wal_truncate",
    "PRAGMA journal_mode": "open",
}
# SQLite's code and message, and the driver's exception.
KINDS: Mapping[str, Callable[[], sqlite3.Error]] = {
    "busy": lambda: made(sqlite3.OperationalError("database is locked"), sqlite3.SQLITE_BUSY),
    "full": lambda: made(sqlite3.OperationalError("database or disk is full"), sqlite3.SQLITE_FULL),
    "error": lambda: made(sqlite3.OperationalError("disk I/O error"), sqlite3.SQLITE_IOERR),
    "integrity": lambda: made(sqlite3.IntegrityError("refused by a trigger"), sqlite3.SQLITE_CONSTRAINT),
}


def made(error: sqlite3.Error, code: int) -> sqlite3.Error:
    """With SQLite's result code, which distinguishes errors."""
    error.sqlite_errorcode = code
    return error


_names: dict[str, str] = {}  # by the statement's text


def connection_type(statements: Mapping[str, str]) -> type[sqlite3.Connection]:
    """The class to connect with."""
    _names.update({text: name for name, text in statements.items()})
    return FailingConnection


class FailingConnection(sqlite3.Connection):
    """Not every version of the driver creates cursors by `cursor`, so everything that executes is overridden, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._passages = Passages(_names, OTHERS, self.reach, lambda: self.in_transaction)

    def cursor(self, factory: Any = None) -> Any:
        return super().cursor(_Cursor if factory is None else factory)

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return _Cursor(self).execute(sql, parameters)

    def executemany(self, sql: str, parameters: Any, /) -> sqlite3.Cursor:
        return _Cursor(self).executemany(sql, parameters)

    def run(self, sql: str, execute: Callable[[], object]) -> None:
        """Run a statement, with its fail-points before and after."""
        self._passages.run(sql, execute)

    def reach(self, place: str) -> None:
        """Does nothing unless a test has asked for it."""
        failpoints.reach(place, lambda kind: KINDS[kind]() if kind in KINDS else None)


class _Cursor(sqlite3.Cursor):
    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        self._around(sql, lambda: super(_Cursor, self).execute(sql, parameters))
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        self._around(sql, lambda: super(_Cursor, self).executemany(sql, parameters))
        return self

    def _around(self, sql: str, execute: Callable[[], object]) -> None:
        connection = self.connection
        if not isinstance(connection, FailingConnection):
            execute()
            return
        try:
            connection.run(sql, execute)
        except BaseException:
            self.close()  # as after an error of SQLite's own, the statement is over
            raise
