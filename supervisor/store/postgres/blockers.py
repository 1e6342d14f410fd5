"""Who holds the locks that a statement has waited for in vain.

The server tells that only while somebody waits. So the statement is made once more, in a transaction of its own that is
rolled back.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Collection
from contextlib import closing, suppress
from typing import Any, Protocol

import psycopg

from supervisor.domain.errors import StoreBusy, StoreError
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Row
from supervisor.system.sockets import local_ends

PATIENCE = 1.0  # seconds that the locks are asked for
_POLL = 0.02


class Asking(Protocol):
    """What is needed of a connection."""

    @property
    def pooled(self) -> bool: ...

    @property
    def raw(self) -> psycopg.Connection[Row]: ...

    def rows(self, sql: str, parameters: Any = ()) -> list[Row]: ...

    def close(self) -> None: ...


def explained(
    error: StoreError, connection: Asking, another: Asking, own: Collection[int], sql: str, parameters: Any
) -> StoreError:
    """The same error with the sessions that kept this statement of the connection waiting. As it is where none does any
    more, and behind a pooler, which hides the session that waits. The statement is made on `another` connection, which
    is closed; `own` are the sessions of this process.
    """
    rows: list[Row] = []
    with suppress(StoreError, psycopg.Error):
        if not connection.pooled:
            with closing(another) as asking:
                rows = _blockers(connection, asking.raw, sql, parameters)
    here = {row[0] for row in rows if _is_ours(*row[:3])} - set(own)
    return StoreBusy(str(error), who="; ".join(row[3] for row in rows), here=bool(here)) if rows else error


def _blockers(connection: Asking, raw: psycopg.Connection[Row], sql: str, parameters: Any) -> list[Row]:
    def ask() -> None:
        with suppress(psycopg.Error):
            raw.execute("BEGIN")
            raw.execute(sql, parameters)
            raw.execute("ROLLBACK")

    asking = threading.Thread(target=ask, name="supervisor_blockers", daemon=True)
    asking.start()
    until = time.monotonic() + PATIENCE
    try:
        while asking.is_alive() and time.monotonic() < until:
            if found := connection.rows(QUERIES.blockers, {"waiting": raw.info.backend_pid}):
                return found
            asking.join(_POLL)
        return []
    finally:
        raw.cancel()
        asking.join(PATIENCE)


def _is_ours(session: int, address: str | None, port: int) -> bool:
    """Whether a session is one of this process, or of one that it has started. By a Unix socket only those of our own
    driver can be told.
    """
    if address is not None:
        return (address, port) in local_ends(os.getpid())
    # By its type: to ask an object itself may run an application's code.
    found = (one for one in gc.get_objects() if issubclass(type(one), psycopg.BaseConnection))
    return any(not one.closed and one.info.backend_pid == session for one in found)
