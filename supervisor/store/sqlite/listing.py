"""Which jobs a filter means, the latest first, found in looks of bounded size.

Where to look is chosen by the states asked for. What has failed has an index of its own, in the order of ids
within a type; of what is unfinished there are mostly few, so their ids are sorted here. Anything else walks down
the table, a stretch of rows at a time: no statement reads more than that, however rare the jobs are, so that no
reader holds a snapshot for long.
"""

from __future__ import annotations

import heapq
import itertools
import json
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from supervisor.domain.job import Job, Status
from supervisor.store.base import Filter, Page
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.intake import job_of

PATIENCE = 0.1  # seconds that a page may take; it is then as long as it has become

_BATCH = 500  # ids from an index that are compared at once
_STRETCH = 10_000  # rows of the table that are compared at once: about 3 ms
_FEW = 20_000  # unfinished jobs that are sorted rather than met on the way down
_LAST = 2**63 - 1  # the greatest id

_UNSUCCESSFUL = {Status.FAILED, Status.QUARANTINED}
_UNFINISHED = {Status.PENDING, Status.RUNNING}


class Look(NamedTuple):
    """Ids of jobs that are meant, the latest first. `floor`: below it nobody has looked yet; None: that was all."""

    ids: list[int]
    floor: int | None


def page(connection: Connection, which: Filter, before: int | None, limit: int, patience: float | None) -> Page:
    """At most `limit` jobs; fewer when `patience` (seconds, None: without end) is over."""
    found, floor = some_ids(connection, which, before, limit, patience)
    return Page(_jobs(connection, found), floor)


def some_ids(
    connection: Connection, which: Filter, before: int | None, limit: int, patience: float | None
) -> tuple[list[int], int | None]:
    """The ids of such a page, and the id before which the next one begins."""
    deadline = None if patience is None else time.monotonic() + patience
    found: list[int] = []
    floor = None
    for look in looks(connection, which, before):
        found += look.ids
        floor = look.floor
        if len(found) > limit or (deadline is not None and time.monotonic() > deadline):
            break
    return (found[:limit], found[limit - 1]) if len(found) > limit else (found, floor)


def count(connection: Connection, which: Filter, limit: int) -> int:
    total = 0
    for look in looks(connection, which, None):
        total += len(look.ids)
        if total >= limit:
            return limit
    return total


def ids(connection: Connection, which: Filter) -> list[int]:
    """All of them, the earliest first."""
    found = [job_id for look in looks(connection, which, None) for job_id in look.ids]
    found.reverse()
    return found


def looks(connection: Connection, which: Filter, before: int | None) -> Iterator[Look]:
    """Look after look, until all are found."""
    latest = _LAST if before is None else before - 1
    indexed = _indexed(connection, which, latest)
    if indexed is None:
        return _walk(connection, which, latest)
    return _among(connection, which, indexed)


def _indexed(connection: Connection, which: Filter, latest: int) -> Iterator[int] | None:
    """Candidates in descending order, if the indexes know all of them."""
    statuses = set(which.statuses)
    if not statuses or statuses - _UNSUCCESSFUL - _UNFINISHED:
        return None
    sources: list[Iterator[int]] = []
    if statuses & _UNFINISHED:
        unfinished = _unfinished(connection, statuses & _UNFINISHED)
        if len(unfinished) > _FEW:
            return None
        sources.append(iter(sorted((job_id for job_id in unfinished if job_id <= latest), reverse=True)))
    pairs = [(status, type_) for status in statuses & _UNSUCCESSFUL for type_ in _types(connection, which, status)]
    for status, type_ in pairs:
        sources.append(_stream(connection, status, type_, latest, max(20, _BATCH // len(pairs))))
    return heapq.merge(*sources, reverse=True)


def _unfinished(connection: Connection, statuses: set[Status]) -> list[int]:
    """Ids of running or pending jobs, in any order, and no more than tell that there are too many."""
    query = QUERIES.running_ids if statuses == {Status.RUNNING} else QUERIES.unfinished_ids
    return [row[0] for row in connection.rows(query, {"limit": _FEW + 1})]


def _types(connection: Connection, which: Filter, status: Status) -> list[str]:
    if which.types:
        return list(dict.fromkeys(which.types))
    return [row[0] for row in connection.rows(QUERIES.unsuccessful_types, {"status": status.value})]


def _stream(connection: Connection, status: Status, type_: str, latest: int, chunk: int) -> Iterator[int]:
    """The unsuccessful jobs of a type from the latest down; each chunk is a statement of its own."""
    while True:
        parameters = {"status": status.value, "type": type_, "latest": latest, "limit": chunk}
        rows = connection.rows(QUERIES.unsuccessful_ids, parameters)
        yield from (row[0] for row in rows)
        if len(rows) < chunk:
            return
        latest = rows[-1][0] - 1


def _among(connection: Connection, which: Filter, candidates: Iterator[int]) -> Iterator[Look]:
    parameters = _parameters(which)
    while True:
        batch = list(itertools.islice(candidates, _BATCH))
        matching = connection.rows(QUERIES.match_among, parameters | {"ids": json.dumps(batch)})
        ended = len(batch) < _BATCH
        yield Look([row[0] for row in matching], None if ended else batch[-1])
        if ended:
            return


def _walk(connection: Connection, which: Filter, latest: int) -> Iterator[Look]:
    parameters = _parameters(which)
    rows = _BATCH  # mostly what is wanted is on top
    while True:
        row = connection.row(QUERIES.stretch, {"latest": latest, "rows": rows})
        floor, lowest = row if row is not None else (None, None)
        if floor is None:
            yield Look([], None)
            return
        matching = connection.rows(QUERIES.match_stretch, parameters | {"latest": latest, "floor": floor})
        ended = floor == lowest
        yield Look([row[0] for row in matching], None if ended else floor)
        if ended:
            return
        latest, rows = floor - 1, min(2 * rows, _STRETCH)


def _parameters(which: Filter) -> dict[str, Any]:
    return {
        "statuses": json.dumps([status.value for status in which.statuses]),
        "types": json.dumps(which.types),
        "error": which.error,
        "unique_key": which.unique_key,
        "requires": which.requires,
        "priority": which.priority,
        "finished_after": which.finished_after,
        "finished_before": which.finished_before,
        "tags": json.dumps(which.tags),
    }


def _jobs(connection: Connection, wanted: list[int]) -> list[Job]:
    jobs: list[Job] = []
    for start in range(0, len(wanted), _BATCH):
        batch = json.dumps(wanted[start : start + _BATCH])
        jobs += [job_of(row) for row in connection.rows(QUERIES.jobs_among, {"ids": batch})]
    return jobs
