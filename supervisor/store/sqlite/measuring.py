"""How much waits for whom: used by the maintainer and by whoever looks at the queue."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable

from supervisor.domain.job import shown
from supervisor.store.base import Anomalies, Controls, Depth, JobSelector, SupervisorRecord
from supervisor.store.sqlite.connection import QUERIES, Connection, Row

_COUNTED = 10_000  # remains are counted no further


def any_due(connection: Connection, wanted: JobSelector, now: float) -> bool:
    """Whether a job is plainly due: one of the usual priority that requires nothing. A fifth of what `depth` costs."""
    return any(connection.row(QUERIES.claim_first, (type_, 0, now)) is not None for type_ in wanted.types[:2])


def depth(connection: Connection, wanted: JobSelector, now: float, limit: int) -> Depth:
    """Due jobs for these types and capabilities, counted up to `limit`; costs a seek a group."""
    total = Depth()
    parameters = {"types": json.dumps(wanted.types), "capabilities": wanted.capabilities}
    for group in connection.rows(QUERIES.groups, parameters):
        total = _with_group(connection, total, group, now, limit)
    return total


def backlog(connection: Connection, now: float, limit: int) -> dict[str, Depth]:
    """The same for every type that has unfinished jobs, whoever may take them."""
    found: dict[str, Depth] = {}
    if _crowded(connection):
        for name, due, oldest, next_due in connection.rows(QUERIES.whole_backlog, {"now": now}):
            found[shown(name)] = Depth(min(int(due), limit), oldest, next_due)
        return found
    for group in connection.rows(QUERIES.backlog):
        type_ = shown(group[0])
        found[type_] = _with_group(connection, found.get(type_, Depth()), group, now, limit)
    return found


def _crowded(connection: Connection) -> bool:
    """Whether one look at the whole index costs less than a few seeks a group."""
    row = connection.row(QUERIES.crowded)
    return row is not None and bool(row[0])


def _with_group(connection: Connection, before: Depth, group: Row, now: float, limit: int) -> Depth:
    """A depth with one more (type, requires, priority), of which `group` tells the first row's time, too."""
    type_, requires, priority, first_at = group
    if not isinstance(first_at, (int, float)):
        return before
    if first_at > now:
        return before._replace(next_due=_earlier(before.next_due, first_at))
    due = before.due
    if due < limit:
        which = {"type": type_, "requires": requires, "priority": priority, "now": now, "limit": limit - due}
        row = connection.row(QUERIES.count_group, which)
        due += row[0] if row else 0
    return before._replace(due=due, oldest=_earlier(before.oldest, first_at))


def _earlier(one: float | None, other: float) -> float:
    return other if one is None else min(one, other)


def controls(connection: Connection) -> Controls:
    rows = connection.rows(QUERIES.controls)
    return Controls(
        paused=frozenset(shown(name) for kind, name, _ in rows if kind == "paused"),
        sizes={shown(name): value for kind, name, value in rows if kind == "workers"},
        reloads=sum(value for kind, _, value in rows if kind == "reload"),
    )


def supervisors(connection: Connection) -> list[SupervisorRecord]:
    """The registry: the running, and the dead that nobody has recovered yet."""
    return [SupervisorRecord(*row) for row in connection.rows(QUERIES.supervisors)]


def log_size(connection: Connection) -> int:
    """Bytes of the write-ahead log."""
    try:
        return os.stat(f"{connection.place.database}-wal").st_size  # noqa: PTH116 - no Path per look
    except OSError:
        return 0


def unhandled(connection: Connection, types: Iterable[str]) -> list[str]:
    """Types of pending jobs that are not among these."""
    return [shown(row[0]) for row in connection.rows(QUERIES.unhandled, {"types": json.dumps(list(types))})]


def requirements(connection: Connection, now: float) -> list[tuple[str, str]]:
    """(type, requires) of what due jobs require, each once; nothing where there are too many kinds to look at."""
    if _crowded(connection):
        return []
    found: dict[tuple[str, str], None] = {}
    for type_, requires, _, first_at in connection.rows(QUERIES.backlog):
        if requires and isinstance(first_at, (int, float)) and first_at <= now:
            found[shown(type_), shown(requires)] = None
    return list(found)


def remains(connection: Connection, now: float, slack: float, done_before: float, failed_before: float) -> Anomalies:
    """What should not be lying about, each counted no further than a bound."""
    known = {
        "past": now - slack,
        "future": now + slack,
        "done_before": done_before,
        "failed_before": failed_before,
        "limit": _COUNTED,
    }

    def counted(query: str) -> int:
        row = connection.row(query, known)
        return int(row[0]) if row else 0

    return Anomalies(
        held={shown(supervisor): count for supervisor, count in connection.rows(QUERIES.held_by_supervisor)},
        expired=counted(QUERIES.count_expired),
        orphans=counted(QUERIES.count_orphans),
        overdue=counted(QUERIES.count_overdue),
        future=counted(QUERIES.count_future),
    )
