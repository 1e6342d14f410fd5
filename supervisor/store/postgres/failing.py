"""A connection on which every named statement is a fail-point, see supervisor/store/sql/failing.py: for tests.

What fails does so at the server, or on the wire: the error has all that the driver makes of it, the transaction is
aborted, the session has ended. So what follows an error is what would follow it in earnest.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any, Self

import psycopg
from psycopg.pq import TransactionStatus

from supervisor.store.sql.failing import Passages
from supervisor.system import failpoints

# Statements that are not in queries.sql, by their text.
OTHERS = {"BEGIN": "begin", "COMMIT": "commit"}
OPENING = "open_session"  # the first statement of a new connection, whose place is `open`
# SQLSTATEs. The first ones have the names that SQLite's kinds have.
STATES = {
    "busy": "55P03",  # another transaction holds a lock
    "full": "53100",
    "error": "58030",  # of the disk
    "integrity": "23514",
    "deadlock": "40P01",
    "serialization": "40001",
    "timeout": "57014",
    "connections": "53300",
    "memory": "53200",
    "readonly": "25006",
    "internal": "XX000",
}
# What ends the session: `lost` without a word, `shutdown` with the server's (57P01).
ENDS = ("lost", "shutdown")
KINDS = (*STATES, *ENDS)

_TERMINATE = "SELECT pg_terminate_backend(pg_backend_pid())"

_names: dict[str, str] = {}  # by the statement's text


def connection_type(statements: Mapping[str, str]) -> type[psycopg.Connection[Any]]:
    """The class to connect with."""
    named = {name: text for name, text in statements.items() if name != OPENING}
    OTHERS[statements[OPENING]] = "open"
    _names.update({text: name for name, text in named.items()})
    return FailingConnection


class _Asked(Exception):
    """A fail-point wants this kind of failure now."""


class FailingConnection(psycopg.Connection[Any]):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursor_factory = _Cursor
        self.passages = Passages(_names, OTHERS, self._reach, self._in_transaction)

    def _in_transaction(self) -> bool:
        return self.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

    def _reach(self, place: str) -> None:
        """Does nothing unless a test has asked for it."""
        committed = place.endswith(".committed") or (not place.endswith(".before") and not self._in_transaction())
        possible = ENDS if committed else KINDS  # no other error follows a commit
        try:
            failpoints.reach(place, lambda kind: _Asked(kind) if kind in possible else None)
        except _Asked as asked:
            self._fail(str(asked))

    def _fail(self, kind: str) -> None:
        """Raises what the driver makes of it."""
        cursor = psycopg.Cursor(self)
        if kind == "lost":
            with socket.socket(fileno=os.dup(self.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
            cursor.execute("SELECT 1")
        elif kind == "shutdown":
            cursor.execute(_TERMINATE)
            cursor.execute("SELECT 1")  # it may have been answered before it heard
        else:
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'as asked: {kind}' USING ERRCODE = '{STATES[kind]}'; END $$")
        raise AssertionError(f"{kind} has not happened")


class _Cursor(psycopg.Cursor[Any]):
    def execute(self, query: Any, params: Any = None, **options: Any) -> Self:
        self._around(query, lambda: super(_Cursor, self).execute(query, params, **options))
        return self

    def executemany(self, query: Any, params_seq: Any, **options: Any) -> None:
        self._around(query, lambda: super(_Cursor, self).executemany(query, params_seq, **options))

    def _around(self, query: Any, execute: Callable[[], object]) -> None:
        connection = self.connection
        if not isinstance(connection, FailingConnection) or not isinstance(query, str):
            execute()
            return
        connection.passages.run("BEGIN" if query.startswith("BEGIN;") else query, execute)  # with settings
