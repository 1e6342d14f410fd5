"""Writes the outcomes of claims. Every statement matches id, status, owner and token: a lost claim changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from supervisor.domain.settlement import Settlement
from supervisor.store.sql.connection import RowRefused
from supervisor.store.sql.settling import record_run, settle
from supervisor.store.sqlite.inserting import insert_new
from supervisor.store.sqlite.statements import QUERIES

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
