"""Connections with fail-points to a server, see supervisor/store/failing.py: for tests.

What fails does so at the server, or on the wire: the error has all that the driver makes of it, the transaction is
aborted, the session has ended. So what follows an error is what would follow it in earnest.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from supervisor.store.failing import Failing, FailingCursor, places_of
from supervisor.system import failpoints

# A server's SQLSTATEs. The first ones have the names that SQLite's kinds have.
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


def postgres_type(statements: Mapping[str, str]) -> type[psycopg.Connection[Any]]:
    """The class to connect with."""

    class Asked(Exception):
        """A fail-point wants this kind of failure now."""

    class Cursor(FailingCursor, psycopg.Cursor[Any]):  # type: ignore[misc]
        pass

    class Connection(Failing, psycopg.Connection[Any]):
        places = places_of(statements)

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.cursor_factory = Cursor
            self.uncommitted = []

        def is_in_transaction(self) -> bool:
            return self.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR)

        def reach(self, place: str) -> None:
            committed = place.endswith(".committed") or not (place.endswith(".before") or self.is_in_transaction())
            possible = ENDS if committed else (*STATES, *ENDS)  # no other error follows a commit
            try:
                failpoints.reach(place, lambda kind: Asked(kind) if kind in possible else None)
            except Asked as asked:
                self._fail(str(asked))

        def _fail(self, kind: str) -> None:
            """Raises what the driver makes of it."""
            cursor = psycopg.Cursor(self)
            if kind == "lost":
                with socket.socket(fileno=os.dup(self.fileno())) as wire:
                    wire.shutdown(socket.SHUT_RDWR)
                cursor.execute("SELECT 1")
            elif kind == "shutdown":
                cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
                cursor.execute("SELECT 1")  # it may have been answered before it heard
            else:
                words = f"RAISE EXCEPTION 'as asked: {kind}' USING ERRCODE = '{STATES[kind]}'"
                cursor.execute(f"DO $$ BEGIN {words}; END $$")
            raise AssertionError(f"{kind} has not happened")

    return Connection
