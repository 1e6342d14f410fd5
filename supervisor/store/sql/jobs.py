"""Looking at jobs. Those that match a filter are found the latest first, in steps of bounded size.

How depends on the states asked for. Failed jobs have an index of their own, ordered by id within a type. Unfinished
jobs are usually few, so their ids are sorted here. Anything else walks down the table, a range of rows at a time: no
statement reads more than that, however rare the jobs are, so that no reader holds a snapshot for long.
"""

from __future__ import annotations

import enum
import heapq
import itertools
import json
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from supervisor.domain.job import UNFINISHED, UNKNOWN, Attempt, Held, Job, JobEvent, Run, Status, decoded, shown
from supervisor.domain.limits import rate_of
from supervisor.store.sql.connection import Concern, Connection, Row


class Filter(NamedTuple):
    """Selects the jobs that match every condition; one that is empty or None matches all jobs.

    `error` is a part of the last message, in any case; `text` a part of that, of the payload or of the result, of which
    only the first 64 Ki characters are read; times are Unix seconds; `tags` all stand in the list "tags" of the job's
    meta.
    """

    statuses: tuple[Status, ...] = ()
    types: tuple[str, ...] = ()
    error: str = ""
    unique_key: str | None = None
    requires: str | None = None
    priority: int | None = None
    finished_after: float | None = None
    finished_before: float | None = None
    tags: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    text: str = ""
    batch: int | None = None


class Sort(enum.StrEnum):
    """By what a list of jobs is sorted, and then by id. `changed`: when it ended, else began, else was created."""

    ID = "id"
    TYPE = "type"
    STATUS = "status"
    PRIORITY = "priority"
    ATTEMPTS = "attempts"
    DUE = "due"
    CHANGED = "changed"


class Page(NamedTuple):
    """Some jobs, the latest first. `next` is the id before which to continue; None: there are no more.

    A page may be short, even empty, and still have a next one: a query reads a bounded number of rows.
    """

    jobs: list[Job]
    next: int | None


class RecordedRun(NamedTuple):
    """A run of any job. `number` grows with each recorded run; `error` is the latest error of the job."""

    number: int
    type: str
    error: str | None
    run: Run


PATIENCE = 0.1  # seconds that a page may take; then it is returned as it is

_BATCH = 500  # ids from an index that are compared at once
_STRETCH = 10_000  # rows of the table that are compared at once: about 3 ms
_FEW = 20_000  # up to so many unfinished jobs are sorted; with more, the table is walked
_NAMED, _COUNTED = 5, 1000  # jobs that a held one waits for: named, and counted
_SAME = 0.001  # seconds between two times that are the same
_ARRANGED = 10_000  # jobs that are sorted by anything but their ids
_LAST = 2**63 - 1  # the greatest id

_UNSUCCESSFUL = {Status.FAILED, Status.QUARANTINED}
_ODD = re.compile("[\0\ud800-\udfff]")


class Look(NamedTuple):
    """Ids of matching jobs, the latest first. `floor`: ids below it have not been looked at; None: all have."""

    ids: list[int]
    floor: int | None


class Jobs(Concern):
    """Looking at jobs. Lists begin with the latest job unless they say otherwise."""

    def get(self, job_id: int) -> Job | None:
        row = self._connection.row(self._queries.job, {"id": job_id})
        return None if row is None else job_of(row)

    def held(self, job: Job) -> Held | None:
        """Where it stands if it is held, or pending; None of others."""
        waits = job.status in (Status.HELD, Status.PENDING)
        row = self._connection.row(self._queries.hold, {"id": job.id}) if waits else None
        if row is None:
            return None
        gate, key = ("" if value is None else shown(value) for value in row[:2])
        expires = row[3] if isinstance(row[3], (int, float)) else None
        found, about = Held(gate, key or None, expires_at=expires), {"id": job.id, "type": job.type, "key": row[1]}
        if job.status is Status.PENDING:
            return found if row[0] is None else self._admitted(job, found, about)
        if gate == "after":
            before = self.predecessors(job.id)
            return found._replace(predecessors=tuple(before[:_NAMED]), total=len(before))
        if gate not in ("key", "type"):
            return found
        found, by_key = self._limited(found, about), gate == "key"
        running = self._queries.admitted_of_key if by_key else self._queries.admitted_of_type
        ahead = self._queries.ahead_of_key if by_key else self._queries.ahead_of_type
        [(waiting,)] = self._connection.rows(ahead, about | {"turn": row[2], "limit": _COUNTED})
        rows = sorted(self._connection.rows(running, about | {"limit": _COUNTED}))
        return found._replace(
            running=tuple(each for each, _ in rows[:_NAMED]),
            total=len(rows),
            since=rows[0][1] if rows else None,
            ahead=waiting,
        )

    def predecessors(self, job_id: int) -> list[int]:
        """The jobs whose end it waits for, or that have failed before it: the first thousand."""
        rows = self._connection.rows(self._queries.predecessors, {"id": job_id, "limit": _COUNTED})
        return [each for (each,) in rows]

    def _limited(self, found: Held, about: dict[str, Any]) -> Held:
        """With the limits of the gate `found`."""
        most, per_key, interval, key_interval, failures, type_at, key_at = self._connection.rows(
            self._queries.limit_of, about
        )[0]
        if found.gate == "key":
            rate, limit, next_at, failures = key_interval, 1 if per_key is None else per_key, key_at, 0
        else:
            rate, limit, next_at = interval, most, type_at
        return found._replace(limit=limit, rate=rate_of(rate) if rate else "", next_at=next_at, failures=failures or 0)

    def _admitted(self, job: Job, found: Held, about: dict[str, Any]) -> Held:
        """Whether a gate has put it off: then it is due when that lets the next one start."""
        for gate in ("type", "key"):
            limited = self._limited(found._replace(gate=gate), about)
            if limited.next_at is not None and abs(job.scheduled_at - limited.next_at) < _SAME:
                return limited
        return found

    def twin(self, job: Job) -> int | None:
        """The unfinished job that has its unique key, so that it cannot be retried."""
        if job.unique_key is None or not job.status.finished or job.status is Status.DONE:
            return None
        row = self._connection.row(self._queries.duplicates, {"ids": json.dumps([job.id])})
        return None if row is None else row[1]

    def attempts(self, job_id: int) -> list[Attempt]:
        """Its failed attempts."""
        return [Attempt(*row) for row in self._connection.rows(self._queries.job_errors, {"id": job_id})]

    def runs(self, job_id: int) -> list[Run]:
        """Its recorded runs, in order."""
        return [Run(*row) for row in self._connection.rows(self._queries.job_runs, {"id": job_id})]

    def durations(self, ids: Sequence[int]) -> dict[int, float]:
        """How many seconds the latest run of each of these jobs took, if it was recorded."""
        return dict(self._connection.rows(self._queries.durations, {"ids": json.dumps(ids)}))

    def latest_runs(self, after: int | None, limit: int) -> list[RecordedRun]:
        """The latest recorded runs of all jobs, in the order in which they were recorded: those after the one with
        this number, or any.
        """
        last = self._connection.row(self._queries.latest_run)
        known = 0 if last is None or last[0] is None else last[0]
        # Numbers are given again after a deletion of the latest run, and by VACUUM.
        after = -1 if after is None else min(after, known)
        rows = self._connection.rows(self._queries.latest_runs, {"after": after, "limit": limit})
        return [RecordedRun(row[0], shown(row[11]), row[12], Run(*row[1:11])) for row in reversed(rows)]

    def latest(
        self,
        *,
        status: Status | None,
        type: str | None,
        before: int | None,
        limit: int,
        tags: tuple[str, ...] = (),
        batch: int | None = None,
    ) -> list[Job]:
        """The latest matching jobs, however long that takes."""
        which = Filter(() if status is None else (status,), () if type is None else (type,), tags=tags, batch=batch)
        found, _ = self.some_ids(which, before=before, limit=limit)
        return _jobs(self._connection, found)

    def page(self, which: Filter, *, before: int | None, limit: int) -> Page:
        """Matching jobs, found in a bounded time; see `Page`."""
        found, floor = self.some_ids(which, before=before, limit=limit, patience=PATIENCE)
        return Page(_jobs(self._connection, found), floor)

    def arranged(self, which: Filter, *, by: Sort, descending: bool, before: int | None, limit: int) -> Page:
        """The first matching jobs of another order. Only the latest 10,000 are put in order, and only as many as are
        found in a bounded time; if there may be more, `next` is the id below which they are.
        """
        found, floor = self.some_ids(which, before=before, limit=_ARRANGED, patience=PATIENCE)
        rows = self._connection.rows(self._queries.arrange, {"ids": json.dumps(found), "by": by.value})
        ids = [row[0] for row in rows]
        wanted = (ids[::-1] if descending else ids)[:limit]
        place = {job_id: index for index, job_id in enumerate(wanted)}
        return Page(sorted(_jobs(self._connection, wanted), key=lambda job: place[job.id]), floor)

    def count(self, which: Filter, *, limit: int) -> int:
        """The number of matching jobs, counted up to `limit`."""
        total = 0
        for look in looks(self._connection, which, None):
            total += len(look.ids)
            if total >= limit:
                return limit
        return total

    def ids(self, which: Filter) -> list[int]:
        """All matching jobs, the earliest first."""
        found = [job_id for look in looks(self._connection, which, None) for job_id in look.ids]
        found.reverse()
        return found

    def some_ids(
        self, which: Filter, *, before: int | None, limit: int, patience: float | None = None
    ) -> tuple[list[int], int | None]:
        """At most `limit` matching jobs, and the id before which to continue; None: there are no more.

        Stops when there are enough, or after `patience` seconds.
        """
        deadline = None if patience is None else time.monotonic() + patience
        found: list[int] = []
        floor = None
        for look in looks(self._connection, which, before):
            found += look.ids
            floor = look.floor
            if len(found) > limit or (deadline is not None and time.monotonic() > deadline):
                break
        return (found[:limit], found[limit - 1]) if len(found) > limit else (found, floor)


def looks(connection: Connection, which: Filter, before: int | None) -> Iterator[Look]:
    """Look after look, until all are found."""
    latest = _LAST if before is None else before - 1
    chosen = sorted({job_id for job_id in which.ids if job_id <= latest}, reverse=True)
    indexed = iter(chosen) if which.ids else _indexed(connection, which, latest)
    if indexed is None:
        return _walk(connection, which, latest)
    return _among(connection, which, indexed)


def _indexed(connection: Connection, which: Filter, latest: int) -> Iterator[int] | None:
    """Candidates in descending order, if the indexes know all of them."""
    if which.batch is not None:
        rows = connection.rows(connection.queries.batch_ids, {"batch": which.batch, "limit": _FEW + 1})
        if len(rows) <= _FEW:
            return iter([row[0] for row in rows if row[0] <= latest])
    statuses = set(which.statuses)
    if not statuses or statuses - _UNSUCCESSFUL - UNFINISHED:
        return None
    sources: list[Iterator[int]] = []
    if statuses & UNFINISHED:
        unfinished = _unfinished(connection, statuses & UNFINISHED)
        if len(unfinished) > _FEW:
            return None
        sources.append(iter(sorted((job_id for job_id in unfinished if job_id <= latest), reverse=True)))
    pairs = [(status, type_) for status in statuses & _UNSUCCESSFUL for type_ in _types(connection, which, status)]
    for status, type_ in pairs:
        sources.append(_stream(connection, status, type_, latest, max(20, _BATCH // len(pairs))))
    return heapq.merge(*sources, reverse=True)


def _unfinished(connection: Connection, statuses: set[Status]) -> list[int]:
    """Ids of running or pending jobs, in any order, and no more than tell that there are too many."""
    query = connection.queries.running_ids if statuses == {Status.RUNNING} else connection.queries.unfinished_ids
    return [row[0] for row in connection.rows(query, {"limit": _FEW + 1})]


def _types(connection: Connection, which: Filter, status: Status) -> list[str]:
    if which.types:
        return list(dict.fromkeys(which.types))
    return [row[0] for row in connection.rows(connection.queries.unsuccessful_types, {"status": status.value})]


def _stream(connection: Connection, status: Status, type_: str, latest: int, chunk: int) -> Iterator[int]:
    """The unsuccessful jobs of a type from the latest down; each chunk is a statement of its own."""
    while True:
        parameters = {"status": status.value, "type": type_, "latest": latest, "limit": chunk}
        rows = connection.rows(connection.queries.unsuccessful_ids, parameters)
        yield from (row[0] for row in rows)
        if len(rows) < chunk:
            return
        latest = rows[-1][0] - 1


def _among(connection: Connection, which: Filter, candidates: Iterator[int]) -> Iterator[Look]:
    parameters = _parameters(which)
    while True:
        batch = list(itertools.islice(candidates, _BATCH))
        matching = connection.rows(connection.queries.match_among, parameters | {"ids": json.dumps(batch)})
        ended = len(batch) < _BATCH
        yield Look([row[0] for row in matching], None if ended else batch[-1])
        if ended:
            return


def _walk(connection: Connection, which: Filter, latest: int) -> Iterator[Look]:
    parameters = _parameters(which)
    rows = _BATCH  # mostly what is wanted is on top
    while True:
        began = time.monotonic()
        row = connection.row(connection.queries.stretch, {"latest": latest, "rows": rows})
        floor, lowest = row if row is not None else (None, None)
        if floor is None:
            yield Look([], None)
            return
        matching = connection.rows(connection.queries.match_stretch, parameters | {"latest": latest, "floor": floor})
        ended = floor == lowest
        yield Look([row[0] for row in matching], None if ended else floor)
        if ended:
            return
        latest = floor - 1
        if time.monotonic() - began < PATIENCE / 4:  # a text is looked for in payloads, which may be large
            rows = min(2 * rows, _STRETCH)


def _parameters(which: Filter) -> dict[str, Any]:
    return {
        "statuses": json.dumps([status.value for status in which.statuses]),
        "types": json.dumps([_text(name) for name in which.types]),
        "error": _text(which.error),
        "text": _text(which.text),
        "unique_key": which.unique_key and _text(which.unique_key),
        "requires": which.requires and _text(which.requires),
        "priority": which.priority,
        "finished_after": which.finished_after,
        "finished_before": which.finished_before,
        "tags": json.dumps([_text(tag) for tag in which.tags]),
        "batch": which.batch,
    }


def _text(asked: str) -> str:
    """What no database holds is looked for as what stands in its place."""
    return _ODD.sub("\ufffd", asked)


def _jobs(connection: Connection, wanted: list[int]) -> list[Job]:
    jobs: list[Job] = []
    for start in range(0, len(wanted), _BATCH):
        batch = json.dumps(wanted[start : start + _BATCH])
        jobs += [job_of(row) for row in connection.rows(connection.queries.jobs_among, {"ids": batch})]
    return jobs


_TEXTS = (5, 10, 15, 18, 24, 26, 27, 28)  # requires, locked_by, unique_key, last_error, progress_text, … in a Job


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
        fields[18] = f"its status is {shown(row[3])!r}, {UNKNOWN}"
    fields[17] = decoded(fields[17])
    fields[23] = decoded(fields[23])
    return Job(*fields)


def event_of(row: Row) -> JobEvent:
    """The columns must be in the order of JobEvent's fields."""
    job_id, status, progress, text, result, error, *counts = row
    shown_text, shown_error = (None if value is None else shown(value) for value in (text, error))
    attempt, token = (value if isinstance(value, int) else 0 for value in counts)
    return JobEvent(job_id, status_of(status), progress, shown_text, decoded(result), shown_error, attempt, token)
