"""What is looked at after each commit, also while a transaction elsewhere on the server makes that slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.marks import SharedMarks, asked
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.backlog import Backlog, Depth, JobSelector
from supervisor.store.sql.controls import Controls

SLOW = 0.05  # seconds
_COST = 20  # the time between two of them is at least so many times what the last one took
_LONGEST = 10.0  # seconds between two

Answer = TypeVar("Answer")


class Repeated(Generic[Answer]):
    """One query. Its answer is kept for a while if it was slow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: tuple[float, Answer] | None = None  # until when, and what

    def answer(self, ask: Callable[[], Answer]) -> Answer:
        began = self._clock()
        if self._kept is not None and began < self._kept[0]:
            return self._kept[1]
        answer = ask()
        took = self._clock() - began
        until = began + took + min(_COST * took, _LONGEST)
        self._kept = (until, answer) if took > SLOW else None
        return answer


class PostgresControls(Controls):
    """For a maintainer, which asks for the cancels of its own workers alone."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._cancels: dict[tuple[str, int], Repeated[list[tuple[int, int, str]]]] = {}

    def cancels(self, supervisor: str, limit: int) -> list[tuple[int, int, str]]:
        repeated = self._cancels.setdefault((supervisor, limit), Repeated())
        return repeated.answer(lambda: super(PostgresControls, self).cancels(supervisor, limit))


class PostgresBacklog(Backlog):
    """For a maintainer, with the marks that its workers have."""

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
