"""Writes the outcomes of claims. Every statement matches id, status, owner and token: a lost claim changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from supervisor.domain.job import Status
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, Failure, Settlement, clipped, run_of
from supervisor.store.sqlite.connection import QUERIES, Connection
from supervisor.store.sqlite.driver_errors import RowRefused
from supervisor.store.sqlite.inserting import insert_children, with_room
from supervisor.store.sqlite.refused_rows import quarantine

Refused = tuple[int, str]  # (a job, why)
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
                _record_run(raw, s, self._worker, now)
        return lost + [s.job_id for s in self._others if not _settle(raw, self._owner, s, now, self._worker)]


def _insist_on(rows: int, cursor: sqlite3.Cursor) -> None:
    if cursor.rowcount != rows:
        raise RowRefused("some of these claims are lost")


class Singly:
    """Settles each in a transaction of its own. After a StoreError, the next call of `settle` continues there."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._written: set[tuple[int, int]] = set()  # (job, token) of a call that was not completed

    def settle(
        self, owner: str, settlements: Sequence[Settlement], now: float, *, worker: str | None = None
    ) -> tuple[list[int], list[Refused], list[Refused]]:
        """Returns (jobs whose outcome is lost, those quarantined, those lost that could not even be quarantined)."""
        lost: list[int] = []
        refused: list[Refused] = []
        stuck: list[Refused] = []
        before = frozenset(self._written)
        for s in settlements:
            if (s.job_id, s.token) in before:
                continue
            try:
                settled = self._settle(owner, s, now, worker)
            except RowRefused as error:
                quarantined = quarantine(self._connection, s.job_id, str(error), now, token=s.token, owner=owner)
                (refused if quarantined else stuck).append((s.job_id, str(error)))
                settled = quarantined
            if not settled:
                lost.append(s.job_id)
            self._written.add((s.job_id, s.token))
        self._written.clear()
        return lost, refused, stuck

    def _settle(self, owner: str, s: Settlement, now: float, worker: str | None) -> bool:
        """With everything; if that is refused without the run's row, which matters less; then without its children."""

        def attempt(s: Settlement, *, history: bool = True) -> bool:
            return with_room(self._connection, lambda raw: _settle(raw, owner, s, now, worker, history=history))

        try:
            return attempt(s)
        except RowRefused:
            pass
        try:
            return attempt(s, history=False)
        except RowRefused as error:
            if not s.children:
                raise
            # A constraint of the application's; a retry would meet it again.
            failure = Failure("children", f"a job that it enqueued was refused by the database: {error}")
            return attempt(s._replace(status=Status.FAILED, result=None, failure=failure, children=()))


def _settle(
    raw: sqlite3.Connection,
    owner: str,
    settlement: Settlement,
    now: float,
    worker: str | None,
    *,
    history: bool = True,
) -> bool:
    """Inside the caller's transaction. Returns False if the claim is lost."""
    failure = settlement.failure
    changed = raw.execute(
        QUERIES.settle,
        {
            "id": settlement.job_id,
            "token": settlement.token,
            "owner": owner,
            "status": settlement.status.value,
            "result": settlement.result,
            "progress": settlement.progress,
            "attempts": settlement.attempts,
            "crashes": settlement.crashes,
            "delay": settlement.delay,
            "started_at": settlement.started_at,
            "error": None if failure is None else clipped(failure.message, MAX_MESSAGE),
            "now": now,
        },
    ).rowcount
    if not changed:
        return False
    if settlement.batch_limit:
        raw.execute(QUERIES.limit_batch, {"id": settlement.job_id, "most": settlement.batch_limit})
    if failure is not None and failure.kind != "cancelled":
        record(raw, settlement, failure, worker, now)
    if history:
        _record_run(raw, settlement, worker, now)
    if settlement.children:  # after the settlement: a job may enqueue its own unique key again
        insert_children(raw, settlement.children, now)
    return True


def record(raw: sqlite3.Connection, settlement: Settlement, failure: Failure, worker: str | None, now: float) -> None:
    """Insert a row of `job_errors` for a job whose row has been written."""
    fields: dict[str, Any] = {
        name: getattr(failure, name) for name in ("kind", "exit_code", "signal", "peak_memory", "duration")
    }
    raw.execute(
        QUERIES.insert_error,
        fields
        | {
            "id": settlement.job_id,
            "attempts": settlement.attempts,
            "message": clipped(failure.message, MAX_MESSAGE),
            "traceback": failure.traceback and clipped(failure.traceback, MAX_TEXT),
            "stderr": failure.stderr and clipped(failure.stderr, MAX_TEXT),
            "worker": worker,
            "now": now,
        },
    )


def _record_run(raw: sqlite3.Connection, settlement: Settlement, worker: str | None, now: float) -> None:
    """Insert a row of `job_runs`, if the run is recorded, for a job whose row has been written."""
    run = run_of(settlement)
    if run is None:
        return
    outcome, usage = run
    raw.execute(
        QUERIES.insert_run,
        usage._asdict()
        | {
            "id": settlement.job_id,
            "token": settlement.token,
            "attempts": settlement.attempts,
            "outcome": outcome,
            "worker": worker,
            "now": now,
        },
    )
