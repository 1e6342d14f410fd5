"""Numbers about the whole table."""

from __future__ import annotations

from collections import Counter

from supervisor.domain.job import Status, shown
from supervisor.store.base import Anomalies, ErrorGroup, TypeSpeed
from supervisor.store.sqlite import error_groups
from supervisor.store.sqlite.connection import QUERIES, Connection

_COUNTED = 10_000  # anomalies are counted up to this


class SqliteStatistics:
    """Implements `store.base.Statistics`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def counts(self) -> list[tuple[str, Status, int]]:
        return self.open_counts() + self.closed_counts()

    def open_counts(self) -> list[tuple[str, Status, int]]:
        counts: Counter[tuple[str, str]] = Counter()
        for type_, status, number in self._connection.rows(QUERIES.count_open):
            counts[shown(type_), status] += number
        return [(type_, Status(status), number) for (type_, status), number in counts.items()]

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        return [(shown(row[0]), Status(row[1]), row[2]) for row in self._connection.rows(QUERIES.count_closed)]

    def failures(self, since: float) -> list[tuple[str, int]]:
        return [(shown(row[0]), row[1]) for row in self._connection.rows(QUERIES.failures_by_type, {"since": since})]

    def error_groups(self, since: float, limit: int) -> list[ErrorGroup]:
        return error_groups.groups(self._connection, since)[:limit]

    def speeds(self) -> list[TypeSpeed]:
        return [TypeSpeed(shown(row[0]), *row[1:]) for row in self._connection.rows(QUERIES.slowest_types)]

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
            held={shown(owner): count for owner, count in self._connection.rows(QUERIES.held_by_supervisor)},
            expired=counted(QUERIES.count_expired),
            orphans=counted(QUERIES.count_orphans),
            overdue=counted(QUERIES.count_overdue),
            future=counted(QUERIES.count_future),
        )

    def log_size(self) -> int:
        return self._connection.place.log_size()
