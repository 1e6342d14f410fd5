"""The worker's role: settle what is finished and claim what comes next, in one short transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange, Wanted, WorkerRecord
from supervisor.store.sqlite.connection import QUERIES, Connection, Row
from supervisor.store.sqlite.settling import Outcomes


class SqliteClaims:
    """Implements `store.base.Claims`."""

    def __init__(self, connection: Connection, *, worker: str | None = None) -> None:
        self._connection = connection
        self._worker = worker
        self._priority = 0  # of the group that the last claim was from: the next is most likely from it, too

    def register(self, worker: WorkerRecord) -> None:
        """Write the worker's row; it must stand before its first claim, so that recovery can judge it."""
        self._worker = worker.name
        self._connection.apply(QUERIES.register_worker, {name: getattr(worker, name) for name in worker.__slots__})

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
        outcomes = Outcomes(owner, settlements, now, worker=self._worker) if settlements else None
        lost: list[int] = []
        claims: list[Claim] = []
        with self._connection.write() as raw:
            if outcomes is not None:
                lost = outcomes.settle(raw, now)
            if want == 1 and len(wanted.types) == 1:
                claims = self._claim_first(raw, owner, wanted.types[0], now, now + lock_time)
            if want > 0 and not claims:
                groups = self._due(wanted, now)
                mark = {"owner": owner, "now": now, "expires_at": now + lock_time}
                claims = [Claim._make(row) for row in _claim(raw, groups, mark, want)]
                self._priority = groups[0][2] if groups else 0
        return Exchange(claims, lost)

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
        due = [group for group in groups if group[3] is not None and group[3] <= now]
        if len(due) > 1:
            due.sort(key=_priority, reverse=True)
        return due

    def _claim_first(
        self, raw: sqlite3.Connection, owner: str, type_: str, now: float, expires_at: float
    ) -> list[Claim]:
        """The short way to one job, where one exists: most queues hold one group of a pool's type."""
        row = raw.execute(QUERIES.claim_first, (type_, self._priority, now)).fetchone()
        if row is None or not raw.execute(QUERIES.claim_one, (owner, now, expires_at, row[0])).rowcount:
            return []
        return [Claim._make(row)]

    def close(self) -> None:
        self._connection.close()


@lru_cache(maxsize=64)
def _parameters(wanted: Wanted) -> dict[str, str]:
    return {"types": json.dumps(wanted.types), "capabilities": wanted.capabilities}


def _claim(raw: sqlite3.Connection, groups: list[Row], mark: dict[str, Any], want: int) -> list[Row]:
    """Claim the first `want` due rows of the groups, tier by tier of equal priority."""
    claimed: list[Row] = []
    while groups and len(claimed) < want:
        priority = groups[0][2]
        tier = [group for group in groups if group[2] == priority]
        groups = groups[len(tier) :]
        claimed += _claim_tier(raw, tier, mark, want - len(claimed))
    return claimed


def _claim_tier(raw: sqlite3.Connection, tier: list[Row], mark: dict[str, Any], want: int) -> list[Row]:
    """The first rows of groups that share a priority, by scheduled_at and id across the groups."""
    if len(tier) == 1:
        rows = raw.execute(QUERIES.claim_group, mark | _named(tier[0]) | {"want": want}).fetchall()
    else:
        peek = {"now": mark["now"], "want": want}
        first = sorted(row for group in tier for row in raw.execute(QUERIES.peek_group, _named(group) | peek))
        ids = json.dumps([job_id for _, job_id in first[:want]])
        rows = raw.execute(QUERIES.claim_ids, mark | {"ids": ids}).fetchall()
    if len(rows) > 1:
        rows.sort(key=_place)  # RETURNING promises no order
    return rows


def _named(group: Row) -> dict[str, Any]:
    return {"type": group[0], "requires": group[1], "priority": group[2]}


def _priority(group: Row) -> int:
    return int(group[2])


def _place(row: Row) -> tuple[float, int]:
    return row[7], row[0]
