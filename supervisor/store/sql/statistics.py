"""Numbers about the whole table, what failed lately, and what ran by minute and by hour."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from supervisor.domain.history import MOST_TYPES, Minute, hour_of
from supervisor.domain.job import Status, shown
from supervisor.domain.text import fingerprint
from supervisor.store.sql.connection import Concern, Connection

_OLD = 60.0  # seconds: no transaction of ours takes so long
_MANY_XIDS = 100_000  # transactions since a replication slot, of which no age in seconds is known


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Failed attempts of a type that differ in numbers and names only. `last_at` is Unix seconds.

    `message` is the latest one's, `jobs` counts the jobs that are failed or quarantined now.
    """

    type: str
    kind: str
    message: str
    count: int
    jobs: int
    last_at: float
    last_job: int


class TypeSpeed(NamedTuple):
    """How long the latest done jobs of a type took, in seconds."""

    type: str
    jobs: int
    mean: float
    longest: float


class TableView(NamedTuple):
    """One of our tables, as far as the server's statistics know."""

    name: str
    live: int
    dead: int


class KeeperView(NamedTuple):
    """What keeps dead rows from being removed: a transaction, a prepared one, or a replication slot. `seconds` is its
    age, None if that is not known; `transactions` is how many have begun since.
    """

    kind: str
    who: str
    seconds: float | None
    transactions: int

    @property
    def long(self) -> bool:
        return self.transactions > _MANY_XIDS if self.seconds is None else self.seconds > _OLD


class ServerView(NamedTuple):
    """A database server. `time` is its clock (Unix seconds), `max_connections` what is left for ordinary users;
    `notifications` the part of their queue that is in use, 1 being all; `keepers` what keeps dead rows, as far as we
    see it, and `sees_all` whether we may see the transactions of other users. `pooled`: a pooler stands before it.
    `powerless` are users of workers who may not end the sessions of the other ones.
    """

    time: float
    standby: bool
    connections: int
    max_connections: int
    notifications: float
    sees_all: bool
    tables: list[TableView]
    keepers: list[KeeperView]
    pooled: bool = False
    powerless: Sequence[str] = ()


class Anomalies(NamedTuple):
    """Running jobs that nobody runs. `held` counts running jobs by the id of the supervisor whose worker has them,
    "" standing for none that is known, apart from claims of foreign programs; `expired` is counted up to a limit.
    """

    held: Mapping[str, int]
    expired: int


_COUNTED = 10_000  # expired claims are counted up to this
_ROWS = 10_000  # the latest attempts, which are considered


class Statistics(Concern):
    """Numbers about the whole table."""

    def __init__(self, connection: Connection, log_size: Callable[[], int] = int) -> None:
        super().__init__(connection)
        self._log_size = log_size

    def counts(self) -> list[tuple[str, Status, int]]:
        """All jobs, by type and status; reads the whole table."""
        return self.open_counts() + self.closed_counts()

    def open_counts(self) -> list[tuple[str, Status, int]]:
        """Jobs that are unfinished, failed or quarantined, by type and status; the cost grows with their number."""
        counts: Counter[tuple[str, str]] = Counter()
        for type_, status, number in self._connection.rows(self._queries.count_open):
            counts[shown(type_), status] += number
        return [(type_, Status(status), number) for (type_, status), number in counts.items()]

    def held_counts(self) -> list[tuple[str, str, int]]:
        """Held jobs by type and gate."""
        return [(shown(row[0]), shown(row[1]), row[2]) for row in self._connection.rows(self._queries.count_held)]

    def closed_counts(self) -> list[tuple[str, Status, int]]:
        """Done and cancelled jobs, by type and status; reads the whole table, or estimates them."""
        return [(shown(row[0]), Status(row[1]), row[2]) for row in self._connection.rows(self._queries.count_closed)]

    def failures(self, since: float) -> list[tuple[str, int]]:
        """Failed attempts since then, by type."""
        return [
            (shown(row[0]), row[1]) for row in self._connection.rows(self._queries.failures_by_type, {"since": since})
        ]

    def error_groups(self, since: float, limit: int, rows: int = _ROWS) -> list[ErrorGroup]:
        """Failed attempts since then, the most frequent first and of equally frequent ones the latest; only the latest
        `rows` are considered.
        """
        alike_of: dict[tuple[str, str, str], list[tuple[str, float, int, bool]]] = {}
        which = {"since": since, "rows": rows}
        for type_, kind, stored, at, job, standing in self._connection.rows(self._queries.recent_errors, which):
            message = shown(stored)
            key = shown(type_), shown(kind), fingerprint(message)
            alike_of.setdefault(key, []).append((message, at, job, standing))
        found = []
        for (type_, kind, _), alike in alike_of.items():
            message, at, job, _ = alike[0]
            standing = len({job for _, _, job, standing in alike if standing})
            found.append(ErrorGroup(type_, kind, message, len(alike), standing, at, job))
        return sorted(found, key=lambda group: (-group.count, -group.last_at, group.type, group.message))[:limit]

    def speeds(self) -> list[TypeSpeed]:
        """How long the latest jobs of each type took, the slowest first."""
        return [TypeSpeed(shown(row[0]), *row[1:]) for row in self._connection.rows(self._queries.slowest_types)]

    def anomalies(self, past: float) -> Anomalies:
        """`expired` are the claims that expired before this time."""
        expired = self._connection.row(self._queries.count_expired, {"past": past, "limit": _COUNTED})
        held = self._connection.rows(self._queries.held_by_supervisor)
        return Anomalies({shown(owner): count for owner, count in held}, int(expired[0]) if expired else 0)

    def now(self) -> float:
        """Unix seconds by the clock that decides when jobs are due: a server's, otherwise this machine's. A command
        writes this time, and compares it with those of jobs: the clock of an operator's machine may be wrong.
        """
        return time.time()

    def server(self) -> ServerView | None:
        """None for an engine without a server."""
        return None

    def log_size(self) -> int:
        """Bytes of the write-ahead log; 0 for an engine whose log is not the concern of its users."""
        return self._log_size()


class History(Concern):
    """The finished jobs: of the last day by the minute, of the days before by the hour."""

    def minutes(self, since: float, until: float = inf, limit: int = -1) -> list[Minute]:
        """What was recorded from `since` on and before `until`, in order; with a `limit`, the first rows."""
        known = {"since": since, "until": until, "limit": limit}
        return [Minute(*row) for row in self._connection.rows(self._queries.history, known)]

    def added_up(self, since: float, until: float, step: float, limit: int = -1) -> list[Minute]:
        """The same, added up in steps of so many seconds that begin with `since`. Counts stop at 9e15."""
        known = {"since": since, "until": until, "step": step, "limit": limit}
        return [Minute(*row) for row in self._connection.rows(self._queries.history_in_steps, known)]

    def counted(self, supervisor: str) -> str:
        """The note that was stored with this supervisor's last recorded minutes; "{}" at first."""
        row = self._connection.row(self._queries.counted, {"id": supervisor})
        return "{}" if row is None else str(row[0])

    def record(self, supervisor: str, before: str, after: str, minutes: Sequence[Minute]) -> bool:
        """Add minutes and store the note `after`, in one transaction; or neither, if the note is not `before`."""
        with self._connection.write() as raw:
            if not raw.execute(self._queries.count_on, {"id": supervisor, "before": before, "after": after}).rowcount:
                return False
            raw.executemany(self._queries.add_minute, [minute._asdict() for minute in minutes])
        return True

    def roll_up(self, before: float) -> int:
        """Put one row for each type in the place of the minutes of an hour, the first one before `before` (a full
        hour) that still has minutes. Returns how many rows went; without any, nothing is written.

        The counts are added and the minutes deleted in one transaction, so nothing is counted twice or lost.
        """
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
        """Delete rows that began before then. Without any, nothing is written."""
        if self._connection.row(self._queries.has_history_before, {"before": before}) is None:
            return 0
        return self._connection.apply(self._queries.forget_history, {"before": before})
