"""The last hour's minutes: written by the maintainers, read by whoever draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from supervisor.domain.history import Minute, Standing
from supervisor.store.sqlite.connection import QUERIES, Connection

_MOST_TYPES = 1000  # looked at: another program may make up a new type for each job
_MOST_JOBS = 10_000  # counted in a group


def standing(connection: Connection, now: float) -> list[Standing]:
    """How each type with due or running jobs stands."""
    bounds = {"now": now, "types": _MOST_TYPES, "limit": _MOST_JOBS}
    return [Standing(*row) for row in connection.rows(QUERIES.standing, bounds)]


def counted(connection: Connection, supervisor: str) -> str:
    row = connection.row(QUERIES.counted, {"id": supervisor})
    return "{}" if row is None else str(row[0])


def record(connection: Connection, supervisor: str, note: tuple[str, str], minutes: Sequence[Minute]) -> bool:
    """Write minutes together with the note of what they count; `note` is the one before, and the one after."""
    before, after = note
    with connection.write() as raw:
        if not raw.execute(QUERIES.count_on, {"id": supervisor, "before": before, "after": after}).rowcount:
            return False
        raw.executemany(QUERIES.add_minute, [asdict(minute) for minute in minutes])
    return True


def minutes(connection: Connection, since: float) -> list[Minute]:
    return [Minute(*row) for row in connection.rows(QUERIES.history, {"since": since})]


def forget(connection: Connection, before: float) -> int:
    if connection.row(QUERIES.has_history_before, {"before": before}) is None:
        return 0
    return connection.apply(QUERIES.forget_history, {"before": before})
