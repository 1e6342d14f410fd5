"""Settles finished jobs and claims the next ones, in one short transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from supervisor.domain.job import Claim, at_least
from supervisor.domain.settlement import Settlement
from supervisor.store.sql.backlog import JobSelector, selected
from supervisor.store.sql.claims import Claims, Exchange, refuse_impossible
from supervisor.store.sql.connection import RowRefused
from supervisor.store.sql.settling import record_run, settle
from supervisor.store.sqlite.connection import QUERIES, Connection, Row
from supervisor.store.sqlite.inserting import insert_new


class SqliteClaims(Claims):
    """One writer at a time settles and claims, by the groups of the index of unfinished jobs."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._priority = 0  # of the group of the last claim: the next one is most likely from it, too

    def settle_and_claim(
        self,
        owner: str,
        settlements: Sequence[Settlement],
        wanted: JobSelector,
        want: int,
        lock_time: float,
        now: float,
        *,
        posted: bool = False,
    ) -> Exchange:
        if not settlements and (want < 1 or not (posted or self._anything_due(wanted, now))):
            return Exchange([], [])
        mark = {"owner": owner, "now": now, "expires_at": now + lock_time}
        try:
            return self._exchange(settlements, wanted, want, mark)
        except RowRefused:
            return self._exchange_singly(settlements, wanted, want, mark)

    def _exchange(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> Exchange:
        """All in one transaction. Raises RowRefused if a row does not allow that."""
        owner, now = mark["owner"], mark["now"]
        outcomes = Outcomes(owner, settlements, now, worker=self._worker) if settlements else None
        lost: list[int] = []
        claims: list[Claim] = []
        with self._connection.write() as raw:
            if outcomes is not None:
                lost = outcomes.write(raw, now)
            if want == 1 and len(wanted.types) == 1:
                claims = self._claim_first(raw, wanted, mark)
            if want > 0 and not claims:
                claims = self._claim_due(raw, wanted, mark, want)
                if not (claims or settlements):
                    # A commit would make the maintainer wake us for a row that cannot be claimed.
                    raw.execute("ROLLBACK")
        return Exchange(claims, lost)

    def _claim_due(self, raw: sqlite3.Connection, wanted: JobSelector, mark: dict[str, Any], want: int) -> list[Claim]:
        groups = self._due(wanted, mark["now"])
        if not groups:
            return []
        rows = self._claim(raw, groups, mark, want)
        self._priority = groups[0][2]
        return [Claim._make(row) for row in rows]

    def _anything_due(self, wanted: JobSelector, now: float) -> bool:
        """The cheap check first: after a sleep the pages of the full one are no longer in the CPU's caches."""
        if len(wanted.types) == 1:
            first = (wanted.types[0], at_least(self._priority, wanted.min_priority), now)
            if self._connection.row(QUERIES.claim_first, first) is not None:
                return True
        return bool(self._due(wanted, now))

    def _due(self, wanted: JobSelector, now: float) -> list[Row]:
        """The groups (type, requires, priority, first_at) that have a due row, higher priorities first."""
        groups = self._connection.rows(QUERIES.groups, selected(wanted))
        due = [group for group in groups if isinstance(group[3], (int, float)) and group[3] <= now]
        if len(due) > 1:
            due.sort(key=_priority, reverse=True)
        return due

    def _claim_first(self, raw: sqlite3.Connection, wanted: JobSelector, mark: dict[str, Any]) -> list[Claim]:
        """The fast way to one job of a single type: most queues hold a single group of it."""
        first = (wanted.types[0], at_least(self._priority, wanted.min_priority), mark["now"])
        row = raw.execute(QUERIES.claim_first, first).fetchone()
        if row is None or row[0] in self._stuck:
            return []
        marked = raw.execute(QUERIES.claim_one, (mark["owner"], mark["now"], mark["expires_at"], row[0])).rowcount
        refuse_impossible([row], marked)
        return [Claim._make(row)]

    def _claim(self, raw: sqlite3.Connection, groups: list[Row], mark: dict[str, Any], want: int) -> list[Row]:
        """Claim the first `want` due rows of the groups, in tiers of equal priority."""
        claimed: list[Row] = []
        for _, same in groupby(groups, _priority):
            if len(claimed) == want:
                break
            tier = list(same)
            if len(tier) == 1 and not self._stuck:
                rows = raw.execute(
                    QUERIES.claim_group, mark | _named(tier[0]) | {"want": want - len(claimed)}
                ).fetchall()
            else:
                ids = self._first(raw, tier, mark["now"], want - len(claimed))
                rows = raw.execute(QUERIES.claim_ids, mark | {"ids": json.dumps(ids)}).fetchall() if ids else []
                if not ids:
                    continue
            refuse_impossible(rows, len(rows))
            if len(rows) > 1:
                rows.sort(key=_place)  # RETURNING guarantees no order
            claimed += rows
        return claimed

    def _first(self, raw: sqlite3.Connection, tier: list[Row], now: float, want: int) -> list[int]:
        """The ids of the first rows of groups of the same priority, without stuck ones."""
        peek = {"now": now, "want": want + len(self._stuck)}
        rows = sorted(row for group in tier for row in raw.execute(QUERIES.peek_group, _named(group) | peek))
        return [job_id for _, job_id in rows if job_id not in self._stuck][:want]


def _named(group: Row) -> dict[str, Any]:
    return {"type": group[0], "requires": group[1], "priority": group[2]}


def _priority(group: Row) -> int:
    return int(group[2])


_place = itemgetter(7, 0)  # when a claimed job was due, and its id

_Row = tuple[Any, ...]  # the parameters of settle_done
_STARTED, _ID, _TOKEN = 2, 5, 7  # positions in it


class Outcomes:
    """Settlements, prepared before the write lock is taken as far as possible without it.

    Three kinds, from thousands a second to rare: plain ones (done, no result) are settled many at a time;
    simple ones (done, with a result) by one prepared statement; the others one by one. Runs that are recorded are
    written last.
    """

    __slots__ = ("_others", "_owner", "_plain", "_runs", "_simple", "_worker")

    def __init__(self, owner: str, settlements: Sequence[Settlement], now: float, *, worker: str | None = None) -> None:
        self._owner = owner
        self._worker = worker
        self._others: list[Settlement] = []
        self._simple: list[_Row] = []
        self._plain: list[tuple[dict[str, Any], list[_Row]]] = []
        self._runs: list[Settlement] = []
        by_token: dict[int, list[_Row]] = {}
        for s in settlements:
            if not s.simple:
                self._others.append(s)
                continue
            if s.usage is not None:
                self._runs.append(s)
            row = (s.result, s.progress, s.started_at, now, now, s.job_id, owner, s.token)
            if s.result is None and s.progress is None:
                by_token.setdefault(s.token, []).append(row)
            else:
                self._simple.append(row)
        for token, rows in by_token.items():
            if len(rows) == 1:
                self._simple += rows
            else:
                started = json.dumps({row[_ID]: row[_STARTED] for row in rows})
                self._plain.append(({"started": started, "now": now, "owner": owner, "token": token}, rows))

    def write(self, raw: sqlite3.Connection, now: float) -> list[int]:
        """Write them inside the caller's transaction. Returns the ids of the jobs whose claim was lost.

        Raises RowRefused if only a transaction for each can tell which were lost; or what the driver raises.
        """
        lost: list[int] = []
        if len(self._simple) == 1:  # the path of prefetch = 1
            if not raw.execute(QUERIES.settle_done, self._simple[0]).rowcount:
                lost = [self._simple[0][_ID]]
        elif self._simple:
            _insist_on(len(self._simple), raw.executemany(QUERIES.settle_done, self._simple))
        for group, rows in self._plain:
            _insist_on(len(rows), raw.execute(QUERIES.settle_plain, group))
        for s in self._runs:
            if s.job_id not in lost:
                record_run(QUERIES, raw, s, self._worker, now)
        return lost + [
            s.job_id for s in self._others if not settle(QUERIES, insert_new, raw, self._owner, s, now, self._worker)
        ]


def _insist_on(rows: int, cursor: sqlite3.Cursor) -> None:
    if cursor.rowcount != rows:
        raise RowRefused("some of these claims are lost")
