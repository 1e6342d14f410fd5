"""What fails, and how often: the latest failed attempts, put together by what they have in common."""

from __future__ import annotations

from dataclasses import dataclass, field

from supervisor.domain.fingerprint import fingerprint
from supervisor.store.base import ErrorGroup
from supervisor.store.sqlite.connection import QUERIES, Connection

_ROWS = 10_000  # attempts that are looked at, the latest ones


@dataclass(slots=True)
class _Pile:
    """The attempts of one group, from the latest on."""

    message: str
    last_at: float
    last_job: int
    count: int = 0
    standing: set[int] = field(default_factory=set)


def _text(stored: str | bytes) -> str:
    return stored.decode("utf-8", "replace") if isinstance(stored, bytes) else stored


def groups(connection: Connection, since: float) -> list[ErrorGroup]:
    """The most frequent first; of equally frequent ones the latest."""
    piles: dict[tuple[str, str, str], _Pile] = {}
    rows = connection.rows(QUERIES.recent_errors, {"since": since, "rows": _ROWS})
    for type_, kind, stored, created_at, job_id, standing in rows:
        message = _text(stored)
        key = (_text(type_), _text(kind), fingerprint(message))
        pile = piles.get(key)
        if pile is None:
            pile = piles[key] = _Pile(message, created_at, job_id)
        pile.count += 1
        if standing:
            pile.standing.add(job_id)
    found = [
        ErrorGroup(type_, kind, pile.message, pile.count, len(pile.standing), pile.last_at, pile.last_job)
        for (type_, kind, _), pile in piles.items()
    ]
    return sorted(found, key=lambda group: (-group.count, -group.last_at, group.type, group.message))
