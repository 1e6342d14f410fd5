"""The worker's role: settle what is finished and claim what comes next, in one short transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange, Wanted, WorkerRecord
from supervisor.store.sqlite.connection import QUERIES, Connection, Row
from supervisor.store.sqlite.settling import settle_all


class SqliteClaims:
    """Implements `store.base.Claims`."""

    def __init__(self, connection: Connection, *, worker: str | None = None) -> None:
        self._connection = connection
        self._worker = worker

    def register(self, worker: WorkerRecord) -> None:
        """Write the worker's row; it must stand before its first claim, so that recovery can judge it."""
        self._worker = worker.name
        self._connection.apply(
            QUERIES.register_worker, {name: getattr(worker, name) for name in worker.__slots__}
        )

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
        parameters = _groups_of(wanted)
        if not settlements and (want < 1 or not self._due(self._connection.raw, parameters, now)):
            return Exchange([], [])
        with self._connection.write() as raw:
            lost = settle_all(raw, owner, settlements, now, worker=self._worker) if settlements else []
            claims = self._claim(raw, owner, parameters, want, lock_time, now) if want > 0 else []
        return Exchange(claims, lost)

    def _claim(
        self,
        raw: sqlite3.Connection,
        owner: str,
        parameters: dict[str, str],
        want: int,
        lock_time: float,
        now: float,
    ) -> list[Claim]:
        claims: list[Claim] = []
        mark = {"owner": owner, "now": now, "expires_at": now + lock_time}
        for _, tier in groupby(self._due(raw, parameters, now), key=lambda group: group["priority"]):
            missing = want - len(claims)
            if missing <= 0:
                break
            claims += self._claim_tier(raw, list(tier), mark, missing)
        return claims

    def _claim_tier(
        self, raw: sqlite3.Connection, tier: list[dict[str, Any]], mark: dict[str, Any], want: int
    ) -> list[Claim]:
        """The first `want` due rows of groups that share a priority, by scheduled_at and id across groups."""
        if len(tier) == 1:
            rows = raw.execute(QUERIES.claim_group, mark | tier[0] | {"want": want}).fetchall()
        else:
            first = sorted(
                row
                for group in tier
                for row in raw.execute(QUERIES.peek_group, group | {"now": mark["now"], "want": want})
            )[:want]
            ids = json.dumps([job_id for _, job_id in first])
            rows = raw.execute(QUERIES.claim_ids, mark | {"ids": ids}).fetchall()
        rows.sort(key=_by_due)  # RETURNING promises no order
        return [Claim._make(row[:7]) for row in rows]

    def _due(self, raw: sqlite3.Connection, parameters: dict[str, str], now: float) -> list[dict[str, Any]]:
        """The groups with a due row, higher priorities first."""
        rows = [
            row for row in raw.execute(QUERIES.groups, parameters) if row[3] is not None and row[3] <= now
        ]
        if len(rows) > 1:
            rows.sort(key=_by_priority)
        return [{"type": row[0], "requires": row[1], "priority": row[2]} for row in rows]

    def close(self) -> None:
        self._connection.close()


def _groups_of(wanted: Wanted) -> dict[str, str]:
    return {"types": json.dumps(wanted.types), "capabilities": wanted.capabilities}


def _by_due(row: Row) -> tuple[float, int]:
    return row[7], row[0]


def _by_priority(row: Row) -> int:
    return -int(row[2])
