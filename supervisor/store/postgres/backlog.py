"""What waits, and where to look for it while a transaction elsewhere on the server stays open.

Such a transaction keeps what has been claimed in the index of pending rows, and each look for the first pending row
walks all of it. So once a look was long, a process keeps marks: the position (scheduled_at, id) of each group of type,
requirements and priority, before which nothing was pending. It looks from there. What a mark passes over, which is a
row inserted late or with an earlier time, or a group that is new, is found when it looks at everything again, which a
timer alone decides.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from supervisor.domain.job import at_least
from supervisor.store.postgres.connection import Connection
from supervisor.store.postgres.statements import QUERIES
from supervisor.store.sql.backlog import LOWEST, Backlog, Depth, JobSelector
from supervisor.store.sql.connection import Row

LONG = 3000  # entries of the index walked, beyond which a look is long: about two milliseconds
_BESIDE = 32  # more for each job wanted: eight workers that claim as many at a time walk over 20 of each other's
SHORTEST, LONGEST = 0.5, 60.0  # seconds between two looks at everything
_COST = 50  # the time between them is at least so many times what the last one took
_LATE = 1.0  # seconds: where nothing is pending, a mark is so far in the past
_GROUPS = 300  # that are remembered at most

Group = tuple[str, str, int]  # type, requirements, priority
Position = tuple[float, int]  # scheduled_at, id
Positions = dict[Group, Position]

_EVERYWHERE: dict[str, Any] = dict.fromkeys(("in_types", "in_requires", "in_priorities", "from_times", "from_ids"))


class Marks:
    """The marks of one selection of jobs. There are none until a look was long, and from when looks are short again."""

    def __init__(self, connection: Connection, wanted: JobSelector) -> None:
        self._connection = connection
        self._wanted = wanted
        self._positions: Positions = {}
        self.used = False  # whether looks were long lately
        self.due = 0.0  # when the next look at everything is to be made, in monotonic seconds

    def note(self, walked: int, want: int = 0) -> None:
        """A look at everything, for so many jobs, has walked over so many entries: if it was long, there are marks from
        now on.
        """
        if walked > LONG + _BESIDE * want and not self.used:
            self.used, self.due, self._positions = True, 0.0, {}

    def current(self) -> Positions | None:
        """The positions; None if looks are short again. Looks at everything if it is time."""
        if self.used and time.monotonic() >= self.due:
            self._look()
        return self._positions if self.used else None

    def first_due(self, now: float) -> Positions:
        """Where each group begins that has a due row, by a look at everything."""
        return _positions(row for row in self.first_rows(None) if row[3] <= now)

    def first_rows(self, positions: Positions | None) -> list[Row]:
        """The first pending row of each group, from these positions on or everywhere."""
        rows, _, walked = self._first_of_groups(positions)
        if positions is None:
            self.note(walked)
        return rows

    def raise_to(self, reached: Mapping[Group, Position]) -> None:
        """Nothing is pending before these any more."""
        for group, position in reached.items():
            self._positions[group] = max(position, self._positions.get(group, position))

    def _look(self) -> None:
        """At everything. A mark is where a group's first row is, or where the next ones will be inserted. Groups that
        have emptied stay known.
        """
        began = time.monotonic()
        rows, clock, walked = self._first_of_groups(None)
        now = time.monotonic()
        late: Position = (clock - _LATE, 0)
        groups = {(kind, "", at_least(0, self._wanted.min_priority)): late for kind in self._wanted.types}
        found = {(kind, word, rank): min((at, job_id), late) for kind, word, rank, at, job_id in rows}
        if len(self._positions) + len(found) <= _GROUPS:
            groups |= dict.fromkeys(self._positions, late)
        self._positions = groups | found
        self.used = walked > LONG and len(self._positions) <= _GROUPS
        self.due = now + min(max(SHORTEST, _COST * (now - began)), LONGEST)

    def _first_of_groups(self, positions: Positions | None) -> tuple[list[Row], float, int]:
        """(the rows, the server's time, entries walked)."""
        which = {
            "wanted": list(self._wanted.types),
            "capabilities": self._wanted.capabilities,
            "least": at_least(LOWEST, self._wanted.min_priority),
        }
        *rows, (_, _, _, clock, walked) = self._connection.rows(QUERIES.first_of_groups, which | parameters(positions))
        return rows, clock, walked


class AllMarks(dict[JobSelector, Marks]):
    """Of each selection that was asked for."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __missing__(self, wanted: JobSelector) -> Marks:
        self[wanted] = Marks(self._connection, wanted)
        return self[wanted]


def _positions(rows: Iterable[Row]) -> Positions:
    return {(kind, word, rank): (at, job_id) for kind, word, rank, at, job_id in rows}


def parameters(positions: Positions | None, want: int = 0) -> dict[str, Any]:
    """For the functions that take positions."""
    most = LONG + _BESIDE * want
    if positions is None:
        return _EVERYWHERE | {"most": most}
    return {
        "in_types": [type_ for type_, _, _ in positions],
        "in_requires": [requires for _, requires, _ in positions],
        "in_priorities": [priority for _, _, priority in positions],
        "from_times": [at for at, _ in positions.values()],
        "from_ids": [job_id for _, job_id in positions.values()],
        "most": most,
    }


class PostgresBacklog(Backlog):
    """For a maintainer."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._marks = AllMarks(connection)

    def any_due(self, wanted: JobSelector, now: float) -> bool | None:
        priority, first = at_least(0, wanted.min_priority), QUERIES.claim_first
        if self._marks[wanted].used:
            return None
        return (
            any(self._connection.row(first, (type_, priority, now)) is not None for type_ in wanted.types[:2]) or None
        )

    def depth(self, wanted: JobSelector, now: float, limit: int) -> Depth:
        """`next_due` is also the time of the next look at everything, which may find more."""
        marks = self._marks[wanted]
        positions = marks.current()
        rows = marks.first_rows(positions)
        later = []
        if positions is not None:
            later = [now + max(0.0, marks.due - time.monotonic())]
            marks.raise_to(_positions(row for row in rows if row[3] <= now))
        due, oldest = 0, now
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
