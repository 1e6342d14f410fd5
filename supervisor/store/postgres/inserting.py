"""Inserts jobs into the table, for producers, handlers and schedules alike."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby, islice
from typing import Any, NamedTuple

from supervisor.domain.errors import EnqueueUncertain, StoreError
from supervisor.domain.job import AlikeJobs, Delay, NewJob, NewJobs
from supervisor.store.postgres.driver_errors import translated
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.connection import Connection, Transaction, with_parts
from supervisor.store.sql.inserting import Inserting, in_order_of_keys, in_places, require_batches

_MOST_SKIPS, _MOST_SKIPPED = 100, 1 << 17  # looks for free ids, and how many ids one of them passes over
_MOST = 1000  # rows in one statement
_OF_MANY = ("type", "payload", "priority", "requires", "due", "due_after", "max_attempts")  # what that takes
_TYPES = {str: "text", int: "bigint", float: "double precision", Delay: "double precision"}


class Inserted(NamedTuple):
    """What tells whether a transaction has committed: its number, and a job that it has inserted."""

    transaction: str
    id: int
    created_at: float


def _insert_job(raw: Transaction, job: NewJob, now: float | None) -> int | None:
    """Ids that others have given by hand are passed over."""
    statement, values = _statement(QUERIES.insert_job, job, now)
    free = False
    for tried in range(_MOST_SKIPS):
        job_id = _noted(raw, raw.execute(statement, values).fetchone())
        if job_id is not None or free:
            return job_id
        if job.unique_key is not None and raw.execute(QUERIES.find_unique, values).fetchone():
            return None
        # A block of taken ids is passed in steps that double, so that its length hardly matters.
        found = raw.execute(QUERIES.skip_ids, {"count": min(1 << tried, _MOST_SKIPPED)}).fetchone()
        free = not found[0]
    return None


def _statement(statement: str, job: NewJob, now: float | None) -> tuple[str, dict[str, object]]:
    """With the columns that this job has, and its parameters."""
    values = job._asdict() | {"due": None, "due_after": None, "now": now} | _values(job)
    return _with_columns(statement, _columns([job])), values


def _values(job: NewJob) -> dict[str, object]:
    """The parameters of its times and extra columns. What counts from the insertion is one of its own."""
    times = {"due": job.scheduled_at, **job.extra}
    return {f"{name}_after" if isinstance(value, Delay) else name: value for name, value in times.items()}


def _columns(jobs: Iterable[NewJob]) -> tuple[tuple[str, type], ...]:
    """The extra columns, each with the types of its values."""
    return tuple(dict.fromkeys((name, type(value)) for job in jobs for name, value in job.extra.items()))


@lru_cache(maxsize=256)
def _with_columns(statement: str, columns: tuple[tuple[str, type], ...]) -> str:
    values, arrays, names = dict[str, str](), list[str](), list[str]()
    for column, type_ in columns:
        name, form = (f"{column}_after", "c.called + {}") if type_ is Delay else (column, "{}")
        value = form.format(f"u.{name}" if "/*arrays*/" in statement else f"%({name})s::{_TYPES[type_]}")
        values[column] = f"coalesce({values[column]}, {value})" if column in values else value
        arrays.append(f"%({name})s::{_TYPES[type_]}[]")
        names.append(name)
    return with_parts(statement, columns=values, values=values.values(), arrays=arrays, names=names)


_SINGLE = Inserting(QUERIES, _insert_job)
insert_new, insert_or_find = _SINGLE.insert_new, _SINGLE.insert_or_find


def insert(raw: Transaction, jobs: NewJobs, now: float | None) -> list[int]:
    """Insert jobs, without `now` by the server's clock. Returns their ids in the order given, for a duplicate the
    existing job's.
    """
    require_batches(QUERIES, raw, [jobs.job] if isinstance(jobs, AlikeJobs) else jobs)
    if isinstance(jobs, AlikeJobs):
        return [job_id for payloads in jobs.payloads for job_id in _insert_alike(raw, jobs.job, payloads, now)]
    places = in_order_of_keys(jobs)
    ids: list[int] = []
    for keyed, group in groupby(
        [jobs[place] for place in places], lambda job: job.unique_key is not None or bool(job.after)
    ):
        if keyed:
            ids += [insert_or_find(raw, job, now)[0] for job in group]
        else:
            while some := list(islice(group, _MOST)):
                ids += _insert_many(raw, some, now)
    return in_places(places, ids)


def _insert_many(raw: Transaction, jobs: Sequence[NewJob], now: float | None) -> list[int]:
    if len(jobs) == 1:
        return [insert_or_find(raw, jobs[0], now)[0]]
    rows, columns = [job._asdict() | _values(job) for job in jobs], _columns(jobs)
    names = *_OF_MANY, *(f"{name}_after" if type_ is Delay else name for name, type_ in columns)
    arrays: dict[str, object] = {name: [row.get(name) for row in rows] for name in names}
    statement = _with_columns(QUERIES.insert_many, columns)
    return [_noted(raw, row) or 0 for row in raw.execute(statement, arrays | {"now": now}).fetchall()]


def _insert_alike(raw: Transaction, job: NewJob, payloads: str, now: float | None) -> list[int]:
    statement, values = _statement(QUERIES.insert_alike, job, now)
    return [_noted(raw, row) or 0 for row in raw.execute(statement, values | {"payloads": payloads}).fetchall()]


def _noted(raw: Any, row: tuple[int, str, float] | None) -> int | None:
    """The id of an inserted row. What tells about its transaction is kept where there is a place for it."""
    if row is None:
        return None
    if hasattr(raw, "inserted"):
        raw.inserted = Inserted(row[1], row[0], row[2])
    return row[0]


_PATIENCE = 5.0  # seconds until the server can be asked


def resolve_doubt(connection: Connection, where: str, inserted: Inserted | None, error: BaseException) -> None:
    """Returns if the transaction has committed.

    Raises StoreError if it has not, or if it inserted nothing that must not be inserted twice; EnqueueUncertain if
    nobody can tell.
    """
    failed = translated(error, where)
    if inserted is None:
        raise failed from None
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        try:
            row = connection.row(connection.queries.transaction_status, inserted._asdict())
        except StoreError:
            time.sleep(0.1)
            continue
        status = row[0] if row else None
        if row and status == "committed":
            if row[1]:
                return
            break
        if status == "aborted":
            raise failed from None
        if status is None:
            break
        time.sleep(0.05)  # in progress: its session has not noticed yet
    raise EnqueueUncertain(
        f"{where}: the connection was lost during the commit, so it is unknown whether the jobs "
        "were stored; look before you enqueue them again, or use a unique_key"
    ) from None
