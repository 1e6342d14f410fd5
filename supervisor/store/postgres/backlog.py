"""What waits to be run, also while a transaction elsewhere on the server stays open."""

from __future__ import annotations

import time
from collections.abc import Iterable

from supervisor.store.base import Depth, JobSelector
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.marks import SharedMarks, asked
from supervisor.store.postgres.slow_queries import Repeated
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.backlog import SqlBacklog


class PostgresBacklog(SqlBacklog):
    """Implements `store.base.Backlog` for a maintainer, with the marks that its workers have."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._marks: dict[JobSelector, SharedMarks] = {}
        self._unhandled: Repeated[list[str]] = Repeated()

    def any_due(self, wanted: JobSelector, now: float) -> bool:
        return not self._marks_of(wanted).used and super().any_due(wanted, now)

    def depth(self, wanted: JobSelector, now: float, limit: int) -> Depth:
        """`next_due` is also the time of the next look at everything, which may find more."""
        shared = self._marks_of(wanted)
        marks = shared.current()
        which = asked(wanted) | shared.parameters(marks)
        *rows, (_, _, _, _, walked) = self._connection.rows(QUERIES.first_of_groups, which)
        if marks is None:
            shared.note(walked)
        due, oldest = 0, now
        later = [] if marks is None else [now + max(0.0, marks.due - time.monotonic())]
        for type_, requires, priority, at, job_id in rows:
            if at > now:
                later.append(at)
                continue
            oldest = min(oldest, at)
            if due < limit:
                group = {"type": type_, "requires": requires, "priority": priority, "first_at": at, "first_id": job_id}
                found = self._connection.row(QUERIES.count_from, group | {"now": now, "limit": limit - due})
                due += found[0] if found else 0
        return Depth(due, oldest if due else None, min(later, default=None))

    def unfinished(self, wanted: JobSelector, now: float, within: float) -> bool:
        """Looks at everything: a run that ends when its queue is empty must not overlook a job."""
        return bool(super().depth(wanted, now, 1).due) or super().unfinished(wanted, now, within)

    def unhandled(self, types: Iterable[str]) -> list[str]:
        return self._unhandled.answer(lambda: super(PostgresBacklog, self).unhandled(types))

    def _marks_of(self, wanted: JobSelector) -> SharedMarks:
        if wanted not in self._marks:
            self._marks[wanted] = SharedMarks(self._connection, wanted)
        return self._marks[wanted]

    def close(self) -> None:
        for marks in self._marks.values():
            marks.close()
