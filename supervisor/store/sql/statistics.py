"""Numbers about the whole table."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from supervisor.domain.job import Status, shown
from supervisor.store.base import Anomalies, ErrorGroup, ServerState, TypeSpeed
from supervisor.store.sql import error_groups
from supervisor.store.sql.connection import Connection

_COUNTED = 10_000  # anomalies are counted up to this


class SqlStatistics:
    """Implements `store.base.Statistics`."""

    def __init__(self, connection: Connection, log_size: Callable[[], int]) -> None:
        self._connection = connection
        self._log_size = log_size
        self._queries = connection.queries

    def counts(self) -> list[tuple[str, Status, int]]:
        return self.open_counts() + self.closed_counts()

    def open_counts(self) -> list[tuple[str, Status, int]]:
        counts: Counter[tuple[str, str]] = Counter()
        for type_, status, number in self._connection.rows(self._queries.count_open):
            counts[shown(type_), status] += number
        return [(type_, Status(status), number) for (type_, status), number in counts.items()]

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        return [(shown(row[0]), Status(row[1]), row[2]) for row in self._connection.rows(self._queries.count_closed)]

    def failures(self, since: float) -> list[tuple[str, int]]:
        return [
            (shown(row[0]), row[1]) for row in self._connection.rows(self._queries.failures_by_type, {"since": since})
        ]

    def error_groups(self, since: float, limit: int) -> list[ErrorGroup]:
        return error_groups.groups(self._connection, since)[:limit]

    def speeds(self) -> list[TypeSpeed]:
        return [TypeSpeed(shown(row[0]), *row[1:]) for row in self._connection.rows(self._queries.slowest_types)]

    def anomalies(self, now: float, slack: float, done_before: float, failed_before: float) -> Anomalies:
        """Each is counted up to a limit."""
        known = {
            "past": now - slack,
            "future": now + slack,
            "done_before": done_before,
            "failed_before": failed_before,
            "limit": _COUNTED,
        }

        def counted(query: str) -> int:
            row = self._connection.row(query, known)
            return int(row[0]) if row else 0

        return Anomalies(
            held={shown(owner): count for owner, count in self._connection.rows(self._queries.held_by_supervisor)},
            expired=counted(self._queries.count_expired),
            orphans=counted(self._queries.count_orphans),
            overdue=counted(self._queries.count_overdue),
            future=counted(self._queries.count_future),
        )

    def now(self) -> float:
        return time.time()

    def server(self) -> ServerState | None:
        return None

    def log_size(self) -> int:
        return self._log_size()
