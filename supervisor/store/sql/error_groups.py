"""The latest failed attempts, grouped by what they have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.domain.fingerprint import fingerprint
from supervisor.domain.job import shown
from supervisor.store.base import ErrorGroup
from supervisor.store.sql.connection import Connection

_ROWS = 10_000  # the latest attempts, which are considered


@dataclass(slots=True)
class _Group:
    """Filled from the latest attempt on."""

    message: str
    last_at: float
    last_job: int
    count: int = 0
    standing: set[int] = field(default_factory=set)


def groups(connection: Connection, since: float) -> list[ErrorGroup]:
    """The most frequent first; of equally frequent ones the latest."""
    by_key: dict[tuple[str, str, str], _Group] = {}
    rows = connection.rows(connection.queries.recent_errors, {"since": since, "rows": _ROWS})
    for type_, kind, stored, created_at, job_id, standing in rows:
        message, type_, kind = shown(stored), shown(type_), shown(kind)
        key = (type_, kind, fingerprint(message))
        group = by_key.get(key)
        if group is None:
            group = by_key[key] = _Group(message, created_at, job_id)
        group.count += 1
        if standing:
            group.standing.add(job_id)
    found = [
        ErrorGroup(type_, kind, group.message, group.count, len(group.standing), group.last_at, group.last_job)
        for (type_, kind, _), group in by_key.items()
    ]
    return sorted(found, key=lambda group: (-group.count, -group.last_at, group.type, group.message))
