"""The worker's role: settle what is finished and claim what comes next, in one short transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange, Wanted, WorkerRecord
from supervisor.store.sqlite.connection import QUERIES, Connection, RolledBack, Row
from supervisor.store.sqlite.isolation import REFUSALS, is_rows_fault, set_aside, set_aside_alone
from supervisor.store.sqlite.settling import Outcomes, settle_apart

_ROUNDS = 20  # of looking for claims, while nothing but refused rows is found
_MOST_STUCK = 1000


class SqliteClaims:
    """Implements `store.base.Claims`."""

    def __init__(self, connection: Connection, *, worker: str | None = None) -> None:
        self._connection = connection
        self._worker = worker
        self._refused: list[tuple[int, str]] = []  # by the exchange going on
        self._stuck: set[int] = set()  # rows that cannot even be set aside
        self._priority = 0  # of the group that the last claim was from: the next is most likely from it, too

    def register(self, worker: WorkerRecord) -> None:
        """Write the worker's row; it must stand before its first claim, so that recovery can judge it."""
        self._worker = worker.name
        self._connection.apply(QUERIES.register_worker, worker._asdict())

    def exchange(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        wanted: Wanted,
        want: int,
        lock_time: float,
        now: float,
    ) -> Exchange:
        """Settle, then claim up to `want` due jobs, best first. With nothing to do the lock is never taken."""
        if not settlements and (want < 1 or not self._anything_due(wanted, now)):
            return Exchange([], [])
        try:
            return self._exchange(owner, settlements, wanted, want, lock_time, now)
        except RolledBack:
            return self._exchange_apart(owner, settlements, wanted, want, lock_time, now)

    def _exchange(
        self, owner: str, settlements: Sequence[Settlement], wanted: Wanted, want: int, lock_time: float, now: float
    ) -> Exchange:
        outcomes = Outcomes(owner, settlements, now, worker=self._worker) if settlements else None
        lost: list[int] = []
        claims: list[Claim] = []
        self._refused = []
        with self._connection.write() as raw:
            if outcomes is not None:
                lost = outcomes.settle(raw, now)
            if want == 1 and len(wanted.types) == 1:
                claims = self._claim_first(raw, owner, wanted.types[0], now, now + lock_time)
            if want > 0 and not claims:
                mark = {"owner": owner, "now": now, "expires_at": now + lock_time}
                claims = self._claim_due(raw, wanted, mark, want)
                if not (claims or settlements or self._refused):
                    raw.execute("ROLLBACK")  # a commit would wake us for the row that cannot be claimed
        refused = self._refused if outcomes is None else outcomes.refused + self._refused
        return Exchange(claims, lost, refused) if refused else Exchange(claims, lost)

    def _exchange_apart(
        self, owner: str, settlements: Sequence[Settlement], wanted: Wanted, want: int, lock_time: float, now: float
    ) -> Exchange:
        """The same with a transaction for each job, since a trigger's RAISE(ROLLBACK) undoes all of one."""
        apart = settle_apart(self._connection, owner, settlements, now, worker=self._worker)
        mark = {"owner": owner, "now": now, "expires_at": now + lock_time}
        self._refused = []
        rows: list[Row] = []
        for tier in _tiers(self._due(wanted, now) if want > 0 else []):
            with self._connection.write() as raw:
                first = _first(raw, tier, now, want + len(self._stuck))
            for job_id in first:
                if job_id > 0 and job_id not in self._stuck and len(rows) < want:
                    rows += self._claim_alone(job_id, mark)
        return Exchange([Claim._make(row) for row in rows], apart.lost, apart.refused + self._refused)

    def _claim_alone(self, job_id: int, mark: dict[str, Any]) -> list[Row]:
        """One row in a transaction of its own."""
        try:
            with self._connection.write() as raw:
                return self._claim_one(raw, job_id, mark)
        except RolledBack as error:
            aside = set_aside_alone(self._connection, job_id, str(error), mark["now"])
            self._note_refusal(job_id, str(error), aside)
            return []

    def _claim_due(self, raw: sqlite3.Connection, wanted: Wanted, mark: dict[str, Any], want: int) -> list[Claim]:
        """Once; or, while all that was found had to be set aside, a few times."""
        for _ in range(_ROUNDS):
            before = len(self._refused)
            groups = self._due(wanted, mark["now"])
            rows = self._claim(raw, groups, mark, want)
            self._priority = groups[0][2] if groups else 0
            if rows or len(self._refused) == before:
                break
        return [Claim._make(row) for row in rows]

    def held(self, owner: str) -> list[Claim]:
        """A worker's claims, in the order in which it runs them."""
        return [Claim._make(row) for row in self._connection.rows(QUERIES.held_by, {"owner": owner})]

    def limits(self, jobs: Sequence[int]) -> Mapping[int, int]:
        """With how many at most each may run together, of those whose batch has failed before."""
        return {row[0]: row[1] for row in self._connection.rows(QUERIES.batch_limits, {"jobs": json.dumps(list(jobs))})}

    def _anything_due(self, wanted: Wanted, now: float) -> bool:
        """The short look first: after a sleep every page of the longer one has to come from memory."""
        if len(wanted.types) == 1:
            first = (wanted.types[0], self._priority, now)
            if self._connection.row(QUERIES.claim_first, first) is not None:
                return True
        return bool(self._due(wanted, now))

    def _due(self, wanted: Wanted, now: float) -> list[Row]:
        """The groups (type, requires, priority, first_at) that have a due row, higher priorities first."""
        groups = self._connection.rows(QUERIES.groups, _parameters(wanted))
        due = [group for group in groups if isinstance(group[3], (int, float)) and group[3] <= now]
        if len(due) > 1:
            due.sort(key=_priority, reverse=True)
        return due

    def _claim_first(
        self, raw: sqlite3.Connection, owner: str, type_: str, now: float, expires_at: float
    ) -> list[Claim]:
        """The short way to one job, where one exists: most queues hold one group of a pool's type."""
        row = raw.execute(QUERIES.claim_first, (type_, self._priority, now)).fetchone()
        try:
            if (
                row is None
                or row[0] in self._stuck
                or not raw.execute(QUERIES.claim_one, (owner, now, expires_at, row[0])).rowcount
            ):
                return []
        except REFUSALS as error:
            self._refuse(raw, row[0], error, now)
            return []
        if row[0] < 1:
            self._drop(raw, [row], now)
            return []
        return [Claim._make(row)]

    def _claim(self, raw: sqlite3.Connection, groups: list[Row], mark: dict[str, Any], want: int) -> list[Row]:
        """Claim the first `want` due rows of the groups, tier by tier of equal priority."""
        claimed: list[Row] = []
        for tier in _tiers(groups):
            if len(claimed) == want:
                break
            # A rule may refuse one row and keep what was changed before it: RAISE(FAIL).
            raw.execute("SAVEPOINT tier")
            try:
                rows = _claim_tier(raw, tier, mark, want - len(claimed))
            except REFUSALS as error:
                if not is_rows_fault(error, raw):
                    raise
                raw.execute("ROLLBACK TO tier")
                rows = self._claim_each(raw, tier, mark, want - len(claimed))
            raw.execute("RELEASE tier")
            if rows and min(rows)[0] < 1:
                self._drop(raw, [row for row in rows if row[0] < 1], mark["now"])
                rows = [row for row in rows if row[0] >= 1]
            claimed += rows
        return claimed

    def _claim_each(self, raw: sqlite3.Connection, tier: list[Row], mark: dict[str, Any], want: int) -> list[Row]:
        """The same, one row after the other, since one of them is refused."""
        claimed: list[Row] = []
        for job_id in _first(raw, tier, mark["now"], want + len(self._stuck)):
            if job_id not in self._stuck and len(claimed) < want:
                claimed += self._claim_one(raw, job_id, mark)
        return claimed

    def _claim_one(self, raw: sqlite3.Connection, job_id: int, mark: dict[str, Any]) -> list[Row]:
        try:
            return raw.execute(QUERIES.claim_ids, mark | {"ids": json.dumps([job_id])}).fetchall()
        except REFUSALS as error:
            self._refuse(raw, job_id, error, mark["now"])
            return []

    def _refuse(self, raw: sqlite3.Connection, job_id: int, error: Exception, now: float) -> None:
        """The database refuses the claim: the row is set aside, or where even that is refused, passed over."""
        if not is_rows_fault(error, raw):
            raise error
        self._note_refusal(job_id, str(error), set_aside(raw, job_id, str(error), now))

    def _note_refusal(self, job_id: int, why: str, aside: bool) -> None:
        if aside:
            self._refused.append((job_id, why))
        elif len(self._stuck) < _MOST_STUCK:
            self._stuck.add(job_id)

    def _drop(self, raw: sqlite3.Connection, rows: list[Row], now: float) -> None:
        """Ids below 1 mean "no job" to the scoreboard: nobody could limit, cancel or charge such a run."""
        for row in rows:
            why = f"{row[0]} is no id"
            set_aside(raw, row[0], why, now)
            self._refused.append((row[0], why))

    def close(self) -> None:
        self._connection.close()


@lru_cache(maxsize=64)
def _parameters(wanted: Wanted) -> dict[str, str]:
    return {"types": json.dumps(wanted.types), "capabilities": wanted.capabilities}


def _tiers(groups: list[Row]) -> Iterator[list[Row]]:
    """Groups of equal priority together, as they come."""
    for _, tier in groupby(groups, _priority):
        yield list(tier)


def _claim_tier(raw: sqlite3.Connection, tier: list[Row], mark: dict[str, Any], want: int) -> list[Row]:
    """The first rows of groups that share a priority, by scheduled_at and id across the groups."""
    if len(tier) == 1:
        rows = raw.execute(QUERIES.claim_group, mark | _named(tier[0]) | {"want": want}).fetchall()
    else:
        ids = json.dumps(_first(raw, tier, mark["now"], want))
        rows = raw.execute(QUERIES.claim_ids, mark | {"ids": ids}).fetchall()
    if len(rows) > 1:
        rows.sort(key=_place)  # RETURNING promises no order
    return rows


def _first(raw: sqlite3.Connection, tier: list[Row], now: float, want: int) -> list[int]:
    """The ids of the first rows of groups that share a priority."""
    peek = {"now": now, "want": want}
    first = sorted(row for group in tier for row in raw.execute(QUERIES.peek_group, _named(group) | peek))
    return [job_id for _, job_id in first[:want]]


def _named(group: Row) -> dict[str, Any]:
    return {"type": group[0], "requires": group[1], "priority": group[2]}


def _priority(group: Row) -> int:
    return int(group[2])


def _place(row: Row) -> tuple[float, int]:
    return row[7], row[0]
