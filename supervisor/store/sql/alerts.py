"""The state of alerts, and the failed jobs that they tell of."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.job import NewJob, shown
from supervisor.store.sql.connection import Connection, Transaction


class SqlAlerts:
    """Implements `store.base.AlertStore`. A power loss undoes a state and its jobs together."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queries = connection.queries

    def state(self, alert: str) -> str | None:
        row = self._connection.row(self._queries.meta, {"key": alert})
        return None if row is None else str(row[0])

    def begin(self, alert: str, state: str) -> str:
        self._connection.apply(self._queries.insert_meta, {"key": alert, "value": state})
        return self.state(alert) or state

    def advance(
        self, alert: str, before: str, after: str, jobs: Sequence[NewJob], now: float
    ) -> list[int | None] | None:
        def advance(raw: Transaction) -> list[int | None] | None:
            if not raw.execute(self._queries.advance_alert, {"key": alert, "before": before, "after": after}).rowcount:
                return None
            return [self._connection.inserter.insert(raw, job, now) for job in jobs]

        return self._connection.inserter.with_room(advance)

    def latest_error(self) -> int:
        row = self._connection.row(self._queries.latest_error)
        return int(row[0] or 0) if row else 0

    def failed(self, status: str, after: int, until: int, type: str | None = None) -> list[tuple[str, int, int, str]]:
        which = {"status": status, "after": after, "until": until, "type": type}
        rows = self._connection.rows(self._queries.failed_jobs, which)
        return [(shown(type_), int(jobs), int(job), shown(error)) for type_, jobs, job, error, _ in rows]
