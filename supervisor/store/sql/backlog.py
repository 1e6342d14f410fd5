"""What waits to be run, and for which pools."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from supervisor.domain.history import QueueSizes
from supervisor.domain.job import Job, at_least, shown
from supervisor.store.sql.connection import Concern, Connection, Row, Transaction, change_each, lock_jobs


class JobSelector(NamedTuple):
    """Which jobs a pool takes: its types, capabilities as one space-separated text, lowest priority (None: all)."""

    types: tuple[str, ...]
    capabilities: str = ""
    min_priority: int | None = None


class Depth(NamedTuple):
    """A backlog: due jobs (counted up to a limit), when the first of them became due, when the next will be due."""

    due: int = 0
    oldest: float | None = None
    next_due: float | None = None


LOWEST = -(2**63)  # not -100: a row written past the table's CHECK is a job, too


@lru_cache(maxsize=64)
def selected(wanted: JobSelector) -> dict[str, str | int]:
    """The parameters of a query about these jobs; not to be changed."""
    types, least = json.dumps(wanted.types), at_least(LOWEST, wanted.min_priority)
    return {"types": types, "capabilities": wanted.capabilities, "least": least}


_LAST = 2**63 - 1  # the greatest id
_BOUND = 500  # rows changed by one statement
_MOST = 10_000  # due jobs of a type counted for the history


class Backlog(Concern):
    """What waits to be run, for which pools, and which files are kept for it."""

    def any_due(self, wanted: JobSelector, now: float) -> bool | None:
        """A cheap check that finds most due jobs. False: none of these types is unfinished; None: ask `depth`.

        Looks for jobs of the default priority, or the lowest that is wanted, without requirements.
        """
        priority = at_least(0, wanted.min_priority)
        rows = [self._connection.row(self._queries.any_due, (type_, priority, now)) for type_ in wanted.types[:2]]
        return True if (1,) in rows else False if rows == [(0,)] * len(wanted.types) else None

    def depth(self, wanted: JobSelector, now: float, limit: int) -> Depth:
        """Due jobs that are wanted, counted up to `limit`. Costs a seek for each group."""
        total = Depth()
        for group in self._connection.rows(self._queries.groups, selected(wanted)):
            total = _with_group(self._connection, total, group, now, limit)
        return total

    def ahead(self, job: Job, wanted: JobSelector, now: float, limit: int) -> int:
        """Due jobs that whoever wants these claims before this one, counted up to `limit`. Costs a seek for each
        group.
        """
        count = 0
        for *group, first_at in self._connection.rows(self._queries.groups, selected(wanted)):
            priority = group[2] if isinstance(first_at, (int, float)) and first_at <= now else None
            if isinstance(priority, int) and priority >= job.priority:
                before = (job.scheduled_at, job.id) if priority == job.priority else (now, _LAST)
                count += _count(self._connection, group, before, limit - count)
        return count

    def by_type(self, now: float, limit: int) -> dict[str, Depth]:
        """The same for every type that has unfinished jobs, whatever they require."""
        found: dict[str, Depth] = {}
        if _crowded(self._connection):
            for name, due, oldest, next_due in self._connection.rows(self._queries.whole_backlog, {"now": now}):
                found[shown(name)] = Depth(min(int(due), limit), oldest, next_due)
            return found
        for group in self._connection.rows(self._queries.backlog):
            type_ = shown(group[0])
            found[type_] = _with_group(self._connection, found.get(type_, Depth()), group, now, limit)
        return found

    def queue_sizes(self, now: float) -> list[QueueSizes]:
        """The due and the running jobs of each type that has any."""
        waiting = {type_: depth.due for type_, depth in self.by_type(now, _MOST).items() if depth.due}
        running = {shown(type_): count for type_, count in self._connection.rows(self._queries.running_by_type)}
        types = sorted({*waiting, *running})
        return [QueueSizes(type_, waiting.get(type_, 0), running.get(type_, 0)) for type_ in types]

    def unfinished(self, wanted: JobSelector, now: float, within: float) -> bool:
        """Whether any job is due, or within so many seconds for another attempt, or as a rate lets it start."""
        if self.depth(wanted, now, 1).due:
            return True
        which = {**selected(wanted), "latest": now + within, "now": now}
        return self._connection.row(self._queries.awaiting_retry, which) is not None

    def left_behind(self, types: Iterable[str], limit: int) -> list[int]:
        """Of these types, jobs that are held, or may start at a later time, although nothing else is left to do."""
        which = {"types": json.dumps(list(types)), "limit": limit}
        return sorted(job_id for (job_id,) in self._connection.rows(self._queries.left_behind, which))

    def progress_of(self, types: Iterable[str], since: float) -> tuple[int, int]:
        """(jobs pending, jobs failed or quarantined since then) of these types."""
        listed = {"types": json.dumps(list(types)), "since": since}
        pending = self._connection.row(self._queries.count_pending, listed)
        failed = self._connection.row(self._queries.unsuccessful_since, listed)
        return (pending[0] if pending else 0, failed[0] if failed else 0)

    def unhandled(self, types: Iterable[str]) -> list[str]:
        """Types of pending jobs other than these; a bounded number of them."""
        rows = self._connection.rows(self._queries.unhandled, {"types": json.dumps(list(types))})
        return [shown(row[0]) for row in rows]

    def due_groups(self, now: float) -> list[tuple[str, str, int]]:
        """(type, requires, priority) of due jobs, without duplicates; empty if there are too many to check."""
        if _crowded(self._connection):
            return []
        return [
            (shown(type_), shown(requires), priority)
            for type_, requires, priority, first_at in self._connection.rows(self._queries.backlog)
            if isinstance(priority, int) and isinstance(first_at, (int, float)) and first_at <= now
        ]

    def bring_forward(self, now: float, written_after: float) -> int:
        """Pending jobs whose rows were written after that time (Unix seconds), which is to come: the delay of one that
        has been run counts from `now`, and one that was due when it was inserted is due. Those inserted for a later
        time keep it. Returns how many were changed, a bounded number.
        """
        which = {"now": now, "written_after": written_after, "limit": _MOST}
        ids = [job_id for (job_id,) in self._connection.rows(self._queries.written_later, which)]

        def change(raw: Transaction, ids: Sequence[int]) -> int:
            lock_jobs(self._queries, raw, ids)
            return raw.execute(self._queries.bring_forward, which | {"ids": json.dumps(ids)}).rowcount

        parts = (ids[at : at + _BOUND] for at in range(0, len(ids), _BOUND))
        return sum(change_each(self._connection, part, change)[0] for part in parts)

    def spooled(self, files: Iterable[tuple[str, str, str]]) -> dict[str, float | None]:
        """Those of these files that a job's payload names, by the name of the body, with the Unix time at which the job
        succeeded; None if it has not. Given are the body's name, and the type and the unique key of the job.
        """
        rows = self._connection.rows(self._queries.spooled, {"files": json.dumps(list(files))})
        return {body: at if isinstance(at, float) else None for body, at in rows}


def _crowded(connection: Connection) -> bool:
    """Whether one look at the whole index costs less than a few seeks a group."""
    row = connection.row(connection.queries.crowded)
    return row is not None and bool(row[0])


def _with_group(connection: Connection, before: Depth, row: Row, now: float, limit: int) -> Depth:
    """A depth with one more (type, requires, priority), of which `row` tells the first one's time, too."""
    *group, first_at = row
    if not isinstance(first_at, (int, float)):
        return before
    if first_at > now:
        return before._replace(next_due=_earlier(before.next_due, first_at))
    due = before.due
    if due < limit:
        due += _count(connection, group, (now, _LAST), limit - due)
    return before._replace(due=due, oldest=_earlier(before.oldest, first_at))


def _count(connection: Connection, group: Sequence[Any], before: tuple[float, int], limit: int) -> int:
    """The pending jobs of a (type, requires, priority) before a (scheduled_at, id), counted up to a limit."""
    names = ("type", "requires", "priority", "at", "id", "limit")
    row = connection.row(connection.queries.count_before, dict(zip(names, (*group, *before, limit), strict=True)))
    return int(row[0]) if row else 0


def _earlier(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)
