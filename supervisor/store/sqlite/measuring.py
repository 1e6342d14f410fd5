"""How much waits for whom: used by the maintainer and by whoever looks at the queue."""

from __future__ import annotations

import json
from collections.abc import Iterable

from supervisor.store.base import Controls, Depth, Remains, SupervisorRecord, Wanted
from supervisor.store.sqlite.connection import QUERIES, Connection

_COUNTED = 10_000  # remains are counted no further


def glance(connection: Connection, wanted: Wanted, now: float) -> bool:
    """Whether a job is plainly due: one of the usual priority that requires nothing. A fifth of what `depth` costs."""
    return any(connection.row(QUERIES.claim_first, (type_, 0, now)) is not None for type_ in wanted.types[:2])


def depth(connection: Connection, wanted: Wanted, now: float, limit: int) -> Depth:
    """Due jobs for these types and capabilities, counted up to `limit`; costs a seek a group."""
    due, oldest, next_due = 0, None, None
    parameters = {"types": json.dumps(wanted.types), "capabilities": wanted.capabilities}
    for type_, requires, priority, first_at in connection.rows(QUERIES.groups, parameters):
        if first_at is None:
            continue
        if first_at > now:
            next_due = first_at if next_due is None else min(next_due, first_at)
            continue
        oldest = first_at if oldest is None else min(oldest, first_at)
        if due < limit:
            group = {
                "type": type_,
                "requires": requires,
                "priority": priority,
                "now": now,
                "limit": limit - due,
            }
            row = connection.row(QUERIES.count_group, group)
            due += row[0] if row else 0
    return Depth(due, oldest, next_due)


def controls(connection: Connection) -> Controls:
    rows = connection.rows(QUERIES.controls)
    return Controls(
        paused=frozenset(name for kind, name, _ in rows if kind == "paused"),
        sizes={name: value for kind, name, value in rows if kind == "workers"},
        reloads=sum(value for kind, _, value in rows if kind == "reload"),
    )


def supervisors(connection: Connection) -> list[SupervisorRecord]:
    """The registry: the running, and the dead that nobody has recovered yet."""
    return [SupervisorRecord(*row) for row in connection.rows(QUERIES.supervisors)]


def unhandled(connection: Connection, types: Iterable[str]) -> list[str]:
    """Types of pending jobs that are not among these."""
    return [row[0] for row in connection.rows(QUERIES.unhandled, {"types": json.dumps(list(types))})]


def remains(connection: Connection, now: float, slack: float, done_before: float, failed_before: float) -> Remains:
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

    return Remains(
        held=dict(connection.rows(QUERIES.held_by_supervisor)),
        expired=counted(QUERIES.count_expired),
        orphans=counted(QUERIES.count_orphans),
        overdue=counted(QUERIES.count_overdue),
        future=counted(QUERIES.count_future),
    )
