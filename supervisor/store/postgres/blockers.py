"""Who holds the locks that a worker has waited for in vain.

The server tells that only while somebody waits. So the same locks are asked for once more, on a connection of its own,
and given back at once.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Sequence
from contextlib import closing

import psycopg
from psycopg.sql import quote

from supervisor.store.postgres.connection import Connection, own_sessions
from supervisor.store.postgres.driver_errors import translated
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.claims import Blocker
from supervisor.store.sql.connection import Row
from supervisor.system.sockets import local_ends

_PATIENCE = 1.0  # seconds that the locks are asked for
_POLL = 0.02


def blockers(connection: Connection, owner: str, jobs: Sequence[int]) -> list[Blocker]:
    """Sessions that keep a worker from settling these jobs, or from claiming. None behind a pooler, which hides the
    session that waits. Raises StoreError.
    """
    if connection.pooled:
        return []
    with closing(Connection(connection.address, durable=False, patience=_PATIENCE)) as waiting:
        raw = waiting.raw
        ids = ",".join(str(int(job)) for job in jobs)
        wanted = (
            "BEGIN",
            QUERIES.lock_as_writers,
            QUERIES.await_claims % {"owner": quote(owner, raw)},
            QUERIES.lock_jobs % {"ids": quote(f"[{ids}]", raw)},
            "ROLLBACK",
        )
        try:
            raw.pgconn.send_query(";".join(wanted).encode())
            rows = _while_it_waits(connection, raw)
        except psycopg.Error as error:
            raise translated(error, connection.address.shown) from None
    here = {row[0] for row in rows if _is_ours(*row[:3])} - own_sessions()
    return [Blocker(row[3], row[0] in here) for row in rows]


def _while_it_waits(connection: Connection, raw: psycopg.Connection[Row]) -> list[Row]:
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        found = connection.rows(QUERIES.blockers, {"waiting": raw.info.backend_pid})
        if found:
            return found
        raw.pgconn.consume_input()
        if not raw.pgconn.is_busy():
            break
        time.sleep(_POLL)
    return []


def _is_ours(session: int, address: str | None, port: int) -> bool:
    """Whether a session is one of this process, or of one that it has started. By a Unix socket only those of our own
    driver can be told.
    """
    if address is not None:
        return (address, port) in local_ends(os.getpid())
    # By its type: to ask an object itself may run an application's code.
    found = (one for one in gc.get_objects() if issubclass(type(one), psycopg.BaseConnection))
    return any(not one.closed and one.info.backend_pid == session for one in found)
