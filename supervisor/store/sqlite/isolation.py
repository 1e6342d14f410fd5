"""A row that the database refuses to have changed is that row's fault: it is set aside, and its neighbours go on.

The table's CHECKs keep such rows out, but not all of them: a CHECK of the application's, a trigger, a counter at the
end of what an integer holds. Without this a single one of them would keep a worker from claiming or settling anything.
"""

from __future__ import annotations

import sqlite3

from supervisor.domain.settlement import MAX_MESSAGE, clipped
from supervisor.store.sqlite.connection import QUERIES, Connection, RolledBack

# What one row can cause: a rule broken, a value of a wrong kind or too large, a number beyond 64 bits, half a
# character. Anything else is about the file, the disk or the lock.
REFUSALS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.OperationalError, OverflowError, UnicodeEncodeError)
_OF_EXPRESSIONS = ("malformed JSON", "integer overflow", "user-defined function", "JSON path error")


def is_rows_fault(error: Exception, raw: sqlite3.Connection) -> bool:
    """Whether others may go on in the same transaction. A trigger's RAISE(ROLLBACK) has ended that."""
    if not raw.in_transaction:
        return False
    return not isinstance(error, sqlite3.OperationalError) or any(words in str(error) for words in _OF_EXPRESSIONS)


def set_aside(
    raw: sqlite3.Connection, job_id: int, why: str, now: float, *, owner: str | None = None, token: int | None = None
) -> bool:
    """Quarantine an unfinished job, with a row in job_errors; where an owner is given, only if it still holds it.

    False if it does not, or if the row cannot be changed at all.
    """
    message = clipped(f"the database refuses this row: {why}", MAX_MESSAGE)
    about = {"id": job_id, "error": message, "now": now, "owner": owner, "token": token}
    raw.execute("SAVEPOINT aside")
    try:
        changed = raw.execute(QUERIES.set_aside, about).rowcount > 0
        if changed:
            raw.execute(QUERIES.note_set_aside, about)
    except REFUSALS as error:
        if not is_rows_fault(error, raw):
            raise
        raw.execute("ROLLBACK TO aside")
        changed = False
    raw.execute("RELEASE aside")
    return changed


def set_aside_alone(
    connection: Connection, job_id: int, why: str, now: float, *, owner: str | None = None, token: int | None = None
) -> bool:
    """The same in a transaction of its own, which a trigger's RAISE(ROLLBACK) may end."""
    try:
        with connection.write() as raw:
            return set_aside(raw, job_id, why, now, owner=owner, token=token)
    except RolledBack:
        return False
