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
from supervisor.store.sql.claims import Claims, SettledAndClaimed, refuse_impossible
from supervisor.store.sql.connection import RowRefused
from supervisor.store.sql.settling import record_run, settle
from supervisor.store.sqlite.connection import QUERIES, Connection, Row

_Bound = tuple[Any, ...]  # the parameters of settle_done
_STARTED, _ID = 2, 5  # positions in it
_place = itemgetter(7, 0)  # when a claimed job was due, and its id


class SqliteClaims(Claims):
    """One writer at a time settles and claims, by the groups of the index of unfinished jobs."""

    _connection: Connection

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection)
        self._priority = 0  # of the group of the last claim: the next one is most likely from it, too

    def _anything_due(self, wanted: JobSelector, now: float) -> bool:
        """The cheap check first: after a sleep the pages of the full one are no longer in the CPU's caches."""
        if len(wanted.types) == 1:
            first = (wanted.types[0], at_least(self._priority, wanted.min_priority), now)
            if self._connection.row(QUERIES.claim_first, first) is not None:
                return True
        return bool(self._due(wanted, now)) or self._connection.row(QUERIES.any_moves) is not None

    def _exchange(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> SettledAndClaimed:
        prepared = _prepared(settlements, mark["owner"], mark["now"])
        lost: list[int] = []
        claims: list[Claim] = []
        transaction = self._connection.write()
        with transaction as raw:
            if settlements:
                lost = self._settle(raw, *prepared, settlements, mark)
                transaction.pass_gates(len(settlements) - len(lost))
            if want == 1 and len(wanted.types) == 1:
                claims = self._claim_first(raw, wanted, mark)
            if want > 0 and not claims:
                claims = self._claim_due(raw, wanted, mark, want)
                if not claims and raw.execute(QUERIES.any_moves).fetchone() is not None:
                    transaction.pass_gates(-1)
                    claims = self._claim_due(raw, wanted, mark, want)
                elif not (claims or settlements):
                    # A commit would make the maintainer wake us for a row that cannot be claimed.
                    raw.execute("ROLLBACK")
            transaction.pass_gates(len(claims))
        return SettledAndClaimed(claims, lost)

    def _settle(
        self,
        raw: sqlite3.Connection,
        simple: list[_Bound],
        plain: list[tuple[dict[str, Any], int]],
        settlements: Sequence[Settlement],
        mark: dict[str, Any],
    ) -> list[int]:
        """Returns the ids of the jobs whose claim was lost. Raises RowRefused if only a transaction for each can tell
        which were lost.
        """
        lost: list[int] = []
        if len(simple) == 1:  # the path of prefetch = 1
            if not raw.execute(QUERIES.settle_done, simple[0]).rowcount:
                lost = [simple[0][_ID]]
        elif simple:
            _insist_on(len(simple), raw.executemany(QUERIES.settle_done, simple))
        for group, count in plain:
            _insist_on(count, raw.execute(QUERIES.settle_plain, group))
        for s in settlements:  # runs that are recorded are written last
            if s.usage is not None and s.simple and s.job_id not in lost:
                record_run(self._connection, raw, s, mark["now"], self._worker)
        if len(simple) + sum(count for _, count in plain) < len(settlements):
            for s in settlements:
                if not s.simple and not settle(self._connection, raw, mark["owner"], s, mark["now"], self._worker):
                    lost.append(s.job_id)
        return lost

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

    def _claim_due(self, raw: sqlite3.Connection, wanted: JobSelector, mark: dict[str, Any], want: int) -> list[Claim]:
        """Claim the first `want` due rows of the groups, in tiers of equal priority."""
        claimed: list[Row] = []
        groups = self._due(wanted, mark["now"])
        if groups:
            self._priority = groups[0][2]
        for _, same in groupby(groups, _priority):
            if len(claimed) == want:
                break
            tier = list(same)
            left = want - len(claimed)
            if len(tier) == 1 and not self._stuck:
                rows = raw.execute(QUERIES.claim_group, mark | _named(tier[0]) | {"want": left}).fetchall()
            else:
                ids = self._first(raw, tier, mark["now"], left)
                if not ids:
                    continue
                rows = raw.execute(QUERIES.claim_ids, mark | {"ids": json.dumps(ids)}).fetchall()
            refuse_impossible(rows, len(rows))
            if len(rows) > 1:
                rows.sort(key=_place)  # RETURNING guarantees no order
            claimed += rows
        return [Claim._make(row) for row in claimed]

    def _first(self, raw: sqlite3.Connection, tier: list[Row], now: float, want: int) -> list[int]:
        """The ids of the first rows of groups of the same priority, without stuck ones."""
        peek = {"now": now, "want": want + len(self._stuck)}
        rows = sorted(row for group in tier for row in raw.execute(QUERIES.peek_group, _named(group) | peek))
        return [job_id for _, job_id in rows if job_id not in self._stuck][:want]


def _named(group: Row) -> dict[str, Any]:
    return {"type": group[0], "requires": group[1], "priority": group[2]}


def _priority(group: Row) -> int:
    return int(group[2])


def _prepared(
    settlements: Sequence[Settlement], owner: str, now: float
) -> tuple[list[_Bound], list[tuple[dict[str, Any], int]]]:
    """What can be prepared of plain successes before the write lock is taken: the parameters of settle_done for each,
    and, for those without a result that share a token, which are thousands a second, those of settle_plain for all of
    them and how many they are.
    """
    simple: list[_Bound] = []
    by_token: dict[int, list[_Bound]] = {}
    for s in settlements:
        if s.simple:
            row = (s.result, s.progress, s.started_at, now, now, s.job_id, owner, s.token)
            alike = s.result is None and s.progress is None
            (by_token.setdefault(s.token, []) if alike else simple).append(row)
    plain = []
    for token, rows in by_token.items():
        if len(rows) == 1:
            simple += rows
        else:
            started = json.dumps({row[_ID]: row[_STARTED] and round(row[_STARTED] * 1e6) for row in rows})
            plain.append(({"started": started, "now": now, "owner": owner, "token": token}, len(rows)))
    return simple, plain


def _insist_on(rows: int, cursor: sqlite3.Cursor) -> None:
    if cursor.rowcount != rows:
        raise RowRefused("some of these claims are lost")
