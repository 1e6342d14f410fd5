"""What an error of the server or the driver means: for the whole database, for one row, or that others are in the way.

The SQLSTATE decides, never the words: those may be an application's own, from a trigger, and in any language.
"""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from typing import Any

import psycopg

from supervisor.domain.errors import StoreBusy, StoreError, StoreUnavailable
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Connection, Row
from supervisor.system.sockets import local_ends

# Another transaction is in the way, or was; trying again is right.
_BUSY = {"40001", "40P01", "55P03"}
# By class: connection lost, no resources, the operator intervenes.
_UNAVAILABLE = {"08", "53", "57", "58"}
# A violated constraint, a value out of range, a trigger of the application's, an entry too large for an index.
_OF_A_ROW = {"22", "23", "38", "39", "44", "54", "P0"}
_LOST = {"57P01", "57P02", "57P03", "57P05", "25P03", "25P04"}
_HINTS = {
    "25006": "it is read-only: a standby? name the primary, or add target_session_attrs=read-write to the URL; "
    "or default_transaction_read_only is on for the role or the database",
    "42P01": "the job tables are missing; run `supervisor migrate`",
    "42883": "functions of the job tables are missing; run `supervisor migrate`",
    "42501": "this user lacks a right; docs/deploying/several-machines.md lists who needs which",
    "57014": "it took longer than a minute, or somebody has cancelled it",
    "53300": "it has no free connection; raise max_connections, or run fewer workers",
    "53100": "its disk is full",
}
_INDEX_GONE = "an index of the job tables was dropped; create it again, as schema.sql of the program does"
_OPTIONS = "a pooler? leave out options= of the URL, and set the search path of the role with ALTER ROLE"
# For a hint alone: where a connection is refused, the driver tells no SQLSTATE.
_REFUSALS = {
    **dict.fromkeys(("too many clients", "remaining connection slots", "too many connections"), _HINTS["53300"]),
    "unsupported startup parameter: options": _OPTIONS,
    "unsupported startup parameter in options": _OPTIONS,
}
# Where libpq has tried to connect: the URL says that.
_TRIED = re.compile(
    r"^(?:- host: .*?, hostaddr: \S+ )?(?:connection (?:failed|is bad): )?"
    r'(?:connection to server at "[^"]*"(?: \([^)]*\))?, port \d+ failed: )?(?:FATAL: +)?'
)


def state(error: BaseException) -> str:
    """The SQLSTATE; empty for an error of the driver's own."""
    return getattr(error, "sqlstate", None) or ""


def is_lost(error: BaseException) -> bool:
    """Whether the connection cannot be used any more. A client's own time-out for connecting has no SQLSTATE."""
    code = state(error)
    return code[:2] == "08" or code in _LOST or (not code and isinstance(error, psycopg.OperationalError))


def is_read_only(error: BaseException) -> bool:
    return state(error) == "25006"


def may_be_a_rows_fault(error: BaseException) -> bool:
    """Whether the contents of a row may have caused this."""
    if isinstance(error, UnicodeEncodeError) or (isinstance(error, psycopg.DataError) and not state(error)):
        return True
    return state(error)[:2] in _OF_A_ROW


def sentence(error: BaseException) -> str:
    """The server's own words, on one line."""
    diagnosis = getattr(error, "diag", None)
    text = getattr(diagnosis, "message_primary", None)
    if text is None and isinstance(error, psycopg.OperationalError):  # while connecting, libpq gives words alone
        text = _reasons(str(error))
    elif text is None:
        text = str(error).strip().partition("\n")[0]
    return " ".join(text.split())


def _reasons(text: str) -> str:
    """Of a refused connection, each once; what begins with a tab only asks whether the server is running."""
    lines = [line for line in text.splitlines() if not line.startswith("\t")]
    several = [line for line in lines if line.startswith("- host: ")]
    return "; ".join(dict.fromkeys(_TRIED.sub("", line) for line in several or lines))


def translated(error: BaseException, where: str) -> StoreError:
    """The exception for our callers, with a readable message."""
    code, text = state(error), sentence(error)
    if code in _BUSY:
        return StoreBusy(f"{where}: another transaction was in the way ({text})")
    hint = _HINTS.get(code) or next((_REFUSALS[words] for words in _REFUSALS if words in text), None)
    if code == "42P01" and '"jobs_' in text:
        hint = _INDEX_GONE
    unavailable = is_lost(error) or code[:2] in _UNAVAILABLE or code == "25006"
    kind = StoreUnavailable if unavailable else StoreError
    return kind(f"{where}: {text}; {hint}" if hint else f"{where}: {text}")


# Who holds the locks that a statement has waited for in vain

PATIENCE = 1.0  # seconds that the locks are asked for
_POLL = 0.02

Raw = psycopg.Connection[Row]


def explained(
    error: StoreError, connection: Connection, another: Raw, own: Collection[int], sql: str, parameters: Any
) -> StoreError:
    """The same error with the sessions that kept this statement of the connection waiting; as it is where none does any
    more. The server tells that only while somebody waits: so the statement is made once more on `another` connection.
    `own` are the sessions of this process.
    """
    rows = _blockers(connection, another, sql, parameters)
    here = {row[0] for row in rows if _is_ours(*row[:3])} - set(own)
    return StoreBusy(str(error), who="; ".join(row[3] for row in rows), here=bool(here)) if rows else error


def _blockers(connection: Connection, raw: Raw, sql: str, parameters: Any) -> list[Row]:
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
