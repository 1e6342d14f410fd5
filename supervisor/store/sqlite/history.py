"""The last hour's minutes: written by the maintainers, read by whoever draws them."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.history import Minute, QueueSizes
from supervisor.domain.job import shown
from supervisor.store.sqlite import measuring
from supervisor.store.sqlite.connection import QUERIES, Connection

_MOST = 10_000  # due jobs of a type are counted no further


def queue_sizes(connection: Connection, now: float) -> list[QueueSizes]:
    """How each type with due or running jobs stands."""
    waiting = {type_: depth.due for type_, depth in measuring.backlog(connection, now, _MOST).items() if depth.due}
    running = {shown(type_): count for type_, count in connection.rows(QUERIES.running_by_type)}
    return [QueueSizes(type_, waiting.get(type_, 0), running.get(type_, 0)) for type_ in sorted({*waiting, *running})]


def counted(connection: Connection, supervisor: str) -> str:
    row = connection.row(QUERIES.counted, {"id": supervisor})
    return "{}" if row is None else str(row[0])


def record(connection: Connection, supervisor: str, note: tuple[str, str], minutes: Sequence[Minute]) -> bool:
    """Write minutes together with the note of what they count; `note` is the one before, and the one after."""
    before, after = note
    with connection.write() as raw:
        if not raw.execute(QUERIES.count_on, {"id": supervisor, "before": before, "after": after}).rowcount:
            return False
        raw.executemany(QUERIES.add_minute, [minute._asdict() for minute in minutes])
    return True


def minutes(connection: Connection, since: float) -> list[Minute]:
    return [Minute(*row) for row in connection.rows(QUERIES.history, {"since": since})]


def forget(connection: Connection, before: float) -> int:
    if connection.row(QUERIES.has_history_before, {"before": before}) is None:
        return 0
    return connection.apply(QUERIES.forget_history, {"before": before})
