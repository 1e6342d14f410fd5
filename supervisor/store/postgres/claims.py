"""Settles finished jobs and claims the next ones: one function of the server, in one round trip where possible."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import psycopg

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement
from supervisor.store.postgres.backlog import AllMarks, Marks, Positions, parameters
from supervisor.store.postgres.connection import Connection, Transaction
from supervisor.store.postgres.driver_errors import is_lost, may_be_a_rows_fault
from supervisor.store.postgres.statements import QUERIES, Floats, Integers
from supervisor.store.sql.backlog import JobSelector
from supervisor.store.sql.claims import Claims, SettledAndClaimed
from supervisor.store.sql.connection import Row, RowRefused, lock_jobs
from supervisor.store.sql.registry import WorkerRecord
from supervisor.store.sql.settling import record_run, settle

_AT_ONCE = 1e-6  # seconds
_NOTHING_ELSE: dict[str, Any] = dict.fromkeys(("lock_timeout", "others", "charged", "paused", "pauses"))


class PostgresClaims(Claims):
    """One function of the server settles and claims; it skips rows that other workers have locked."""

    _connection: Connection

    def __init__(self, connection: Connection, *, keep_done: bool = True) -> None:
        super().__init__(connection)
        self._keep_done = keep_done
        self._registered: str | None = None
        self._exchanged_in = 0  # which of the connection's sessions; none yet
        self._marks = AllMarks(connection)

    def register(self, worker: WorkerRecord) -> None:
        self._connection.belong_to(worker.incarnation)
        super().register(worker)
        self._registered = worker.incarnation

    def _exchange(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> SettledAndClaimed:
        marks = self._marks[wanted]
        settlements = _not_passed_over(marks, settlements)
        if want > 0 and self._stuck:
            raise RowRefused("some rows cannot be claimed")  # the function would meet them again
        return self._in_session(self._settle_and_claim(marks, settlements, wanted, want, mark))

    def _exchange_singly(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> SettledAndClaimed:
        settlements = _not_passed_over(self._marks[wanted], settlements)
        return self._in_session(super()._exchange_singly(settlements, wanted, want, mark))

    def _in_session(self, exchange: SettledAndClaimed) -> SettledAndClaimed:
        """A pooler may hide that the session is another one: what was undone with it shows as lost."""
        before, self._exchanged_in = self._exchanged_in, self._connection.sessions
        doubtful = bool(exchange.lost) or before not in (0, self._exchanged_in)
        return exchange._replace(doubtful=True) if doubtful else exchange

    def _settle_and_claim(
        self, marks: Marks, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> SettledAndClaimed:
        owner, now = mark["owner"], mark["now"]
        positions, where = _where(marks, wanted, want, now)
        if not (settlements or where["want"]):
            return SettledAndClaimed([], [])
        claim = {
            **mark,
            "registered": owner if owner == self._registered else None,
            "keep": self._keep_done,
            "wanted": list(wanted.types),
            "capabilities": wanted.capabilities,
            **_NOTHING_ELSE,
            **where,
        }
        plain, runs, others = _sorted(settlements)
        if not self._keep_done:
            runs = []  # they would be deleted with their jobs
        if not (runs or others):
            return _noted(marks, positions, self._at_once(_arrays(plain) | claim))
        with self._connection.write() as raw:
            if plain and others:
                lock_jobs(QUERIES, raw, [s.job_id for s in settlements])
            lost = [s.job_id for s in others if not self._settle_other(raw, owner, s, now)]
            rows = []
            if plain or claim["want"] > 0:
                values = _arrays(plain) | claim | raw.take_settled()
                rows = raw.execute(QUERIES.settle_and_claim, values).fetchall()
            exchange = _noted(marks, positions, rows)
            for s in runs:
                if s.job_id not in exchange.lost:
                    record_run(self._connection, raw, s, now, self._worker)
        return exchange._replace(lost=[*exchange.lost, *lost])

    def _settle_other(self, raw: Transaction, owner: str, s: Settlement, now: float) -> bool:
        settled = settle(self._connection, raw, owner, s, now, self._worker)
        if settled and s.status is Status.DONE and not self._keep_done:
            raw.execute(QUERIES.delete_done, {"id": s.job_id})
        return settled

    def _at_once(self, parameters: dict[str, Any]) -> list[Row]:
        """One statement that is its own transaction.

        If the connection is lost meanwhile, what was settled and claimed is seen by its tokens, and by `held_by`.
        """
        connection = self._connection
        try:
            raw = connection.raw
            parameters["lock_timeout"] = connection.lock_timeout
            return raw.execute(QUERIES.settle_and_claim, parameters, binary=True).fetchall()
        except (psycopg.Error, UnicodeEncodeError) as error:
            connection.drop_if_lost(error)
            if may_be_a_rows_fault(error) and not is_lost(error):
                raise RowRefused(str(error).strip().partition("\n")[0]) from None
            raise connection.explained(error, QUERIES.settle_and_claim, parameters) from None


def _where(marks: Marks, wanted: JobSelector, want: int, now: float) -> tuple[Positions | None, dict[str, Any]]:
    """The marks, and how many jobs the server's function is to claim of which groups: 0 if there are none. The function
    knows no lowest priority, so a pool that has one looks for the groups first.
    """
    positions = begin = marks.current() if want > 0 else None
    if want > 0 and positions is None and wanted.min_priority is not None:
        begin = marks.first_due(now)
        want = want if begin else 0
    return positions, {"want": want} | parameters(begin, want)


def _sorted(settlements: Sequence[Settlement]) -> tuple[list[Settlement], list[Settlement], list[Settlement]]:
    """(plain successes, those of them whose run is recorded, all others), each in the order of ids, which is the order
    in which rows are locked everywhere.
    """
    plain: dict[int, Settlement] = {}
    others = []
    for s in sorted(settlements, key=attrgetter("job_id")):
        if s.simple and s.job_id not in plain:
            plain[s.job_id] = s
        else:
            others.append(s)
    return list(plain.values()), [s for s in plain.values() if s.usage is not None], others


def _arrays(plain: Sequence[Settlement]) -> dict[str, Any]:
    return {
        "ids": Integers([s.job_id for s in plain]),
        "tokens": Integers([s.token for s in plain]),
        "results": _unless_all_null([s.result for s in plain]),
        "progresses": _floats([s.progress for s in plain]),
        "starts": _floats([s.started_at for s in plain]),
    }


def _floats(values: list[float | None]) -> Sequence[float | None] | None:
    known = [value for value in values if value is not None]
    return Floats(known) if len(known) == len(values) else _unless_all_null(values)


def _unless_all_null(values: list[Any]) -> list[Any] | None:
    """NULL for the whole array is as good as one of NULLs."""
    return None if values.count(None) == len(values) else values


def _noted(marks: Marks, positions: Positions | None, rows: list[Row]) -> SettledAndClaimed:
    """What the function returns: lost claims, new ones; last a row if a worker is not registered, or the look long."""
    claimed, last = [row for row in rows if row[8] is False], rows[-1] if rows and rows[-1][8] is None else (0,)
    claimed.sort(key=lambda row: (-row[10], row[7], row[0]))  # the server would keep all rows in between to sort them
    if positions is not None:
        marks.raise_to({(row[2], row[9], row[10]): (row[7], row[0]) for row in claimed})
    elif last[0]:
        marks.note(last[0])
    claims, lost = [Claim._make(row[:8]) for row in claimed], [row[0] for row in rows if row[8]]
    return SettledAndClaimed(claims, lost, registered=last[0] is not None)


def _not_passed_over(marks: Marks, settlements: Sequence[Settlement]) -> Sequence[Settlement]:
    """A job that goes back to the queue at once gets a new time, or the marks would pass over it for a while."""
    changed = (s._replace(delay=_AT_ONCE) if s.status is Status.PENDING and not s.delay else s for s in settlements)
    return list(changed) if marks.used else settlements
