"""What ran, by minute and by hour: written by the maintainers, read by the command line and the admin process."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from supervisor.domain.history import MOST_TYPES, Minute, hour_of
from supervisor.store.sql.connection import Connection


class SqlHistory:
    """Implements `store.base.History`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries

    def minutes(self, since: float, until: float = inf, limit: int = -1) -> list[Minute]:
        known = {"since": since, "until": until, "limit": limit}
        return [Minute(*row) for row in self._connection.rows(self._queries.history, known)]

    def added_up(self, since: float, until: float, step: float, limit: int = -1) -> list[Minute]:
        known = {"since": since, "until": until, "step": step, "limit": limit}
        return [Minute(*row) for row in self._connection.rows(self._queries.history_in_steps, known)]

    def counted(self, supervisor: str) -> str:
        row = self._connection.row(self._queries.counted, {"id": supervisor})
        return "{}" if row is None else str(row[0])

    def record(self, supervisor: str, before: str, after: str, minutes: Sequence[Minute]) -> bool:
        with self._connection.write() as raw:
            if not raw.execute(self._queries.count_on, {"id": supervisor, "before": before, "after": after}).rowcount:
                return False
            raw.executemany(self._queries.add_minute, [minute._asdict() for minute in minutes])
        return True

    def roll_up(self, before: float) -> int:
        first = self._connection.row(self._queries.first_minute, {"before": before})
        if first is None:
            return 0
        known = {"hour": hour_of(first[0]), "types": MOST_TYPES}
        lock = self._queries.statements.get("lock_minutes")  # where there may be several writers at a time
        with self._connection.write() as raw:
            if lock is not None:
                raw.execute(lock, known)
            raw.execute(self._queries.add_hour, known)
            return int(raw.execute(self._queries.forget_minutes, known).rowcount)

    def forget(self, before: float) -> int:
        if self._connection.row(self._queries.has_history_before, {"before": before}) is None:
            return 0
        return self._connection.apply(self._queries.forget_history, {"before": before})
