"""The last hour in minutes: written by the maintainers, read by the command line and the admin process."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.history import Minute
from supervisor.store.sql.connection import Connection


class SqlHistory:
    """Implements `store.base.History`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries

    def minutes(self, since: float) -> list[Minute]:
        return [Minute(*row) for row in self._connection.rows(self._queries.history, {"since": since})]

    def counted(self, supervisor: str) -> str:
        row = self._connection.row(self._queries.counted, {"id": supervisor})
        return "{}" if row is None else str(row[0])

    def record(self, supervisor: str, before: str, after: str, minutes: Sequence[Minute]) -> bool:
        with self._connection.write() as raw:
            if not raw.execute(self._queries.count_on, {"id": supervisor, "before": before, "after": after}).rowcount:
                return False
            raw.executemany(self._queries.add_minute, [minute._asdict() for minute in minutes])
        return True

    def forget(self, before: float) -> int:
        if self._connection.row(self._queries.has_history_before, {"before": before}) is None:
            return 0
        return self._connection.apply(self._queries.forget_history, {"before": before})
