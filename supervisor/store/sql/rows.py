"""From a row of `jobs` to the value that users see. Rows may have been written by any program."""

from __future__ import annotations

import json
from functools import lru_cache

from supervisor.domain.job import Claim, Job, JobEvent, Status, decoded, shown
from supervisor.domain.priority import at_least
from supervisor.store.base import JobSelector
from supervisor.store.sql.connection import Connection, Row

LOWEST = -(2**63)  # not -100: a row written past the table's CHECK is a job, too
_TEXTS = (5, 10, 15, 18, 24)  # requires, locked_by, unique_key, last_error, progress_text in a Job


def status_of(value: object) -> Status:
    """The state that a column names. An unknown one, written past the table's CHECK, counts as quarantined: such a row
    is never run.
    """
    try:
        return Status(shown(value))
    except ValueError:
        return Status.QUARANTINED


def job_of(row: Row) -> Job:
    """The columns must be in the order of Job's fields."""
    fields = list(row)
    fields[1] = shown(fields[1])
    for index in _TEXTS:
        if not isinstance(fields[index], str) and fields[index] is not None:
            fields[index] = shown(fields[index])
    fields[2] = decoded(fields[2])
    fields[3] = status_of(row[3])
    if fields[3] != row[3] and not fields[18]:
        fields[18] = f"its status is {shown(row[3])!r}, which is unknown"
    fields[17] = decoded(fields[17])
    fields[23] = decoded(fields[23])
    return Job(*fields)


def event_of(row: Row) -> JobEvent:
    """The columns must be in the order of JobEvent's fields."""
    job_id, status, progress, text, result, error, *counts = row
    shown_text, shown_error = (None if value is None else shown(value) for value in (text, error))
    attempt, token = (value if isinstance(value, int) else 0 for value in counts)
    return JobEvent(job_id, status_of(status), progress, shown_text, decoded(result), shown_error, attempt, token)


@lru_cache(maxsize=64)
def selected(wanted: JobSelector) -> dict[str, str | int]:
    """The parameters of a query about these jobs; not to be changed."""
    types, least = json.dumps(wanted.types), at_least(LOWEST, wanted.min_priority)
    return {"types": types, "capabilities": wanted.capabilities, "least": least}


def held_by(connection: Connection, owner: str) -> list[Claim]:
    """A worker's claims, in the order in which it runs them."""
    return [Claim._make(row) for row in connection.rows(connection.queries.held_by, {"owner": owner})]
