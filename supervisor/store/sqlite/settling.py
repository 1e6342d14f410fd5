"""Write the ends of claims. Every statement matches id, status, owner and token: a lost claim changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Status
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, Failure, Settlement, clipped, run_of
from supervisor.store.sqlite.connection import QUERIES, Connection, RolledBack
from supervisor.store.sqlite.inserting import insert_children
from supervisor.store.sqlite.isolation import REFUSALS, is_rows_fault, set_aside, set_aside_alone
from supervisor.store.sqlite.repair import exhausted, renumber

_Row = tuple[Any, ...]  # the parameters of settle_done
_STARTED, _ID, _TOKEN = 2, 5, 7  # places in it


class Outcomes:
    """Settlements sorted out before the write lock is taken: everything that can be done without it.

    Three kinds, from thousands a second to rare: plain ones (done, no result) are settled many at a time;
    simple ones (done, with a result) by one prepared statement; the others one by one. Runs worth a row are
    written after them all.
    """

    __slots__ = ("_others", "_owner", "_plain", "_runs", "_simple", "_worker", "refused", "stuck")

    def __init__(self, owner: str, settlements: Sequence[Settlement], now: float, *, worker: str | None = None) -> None:
        self._owner = owner
        self._worker = worker
        self._others: list[Settlement] = []
        self._simple: list[_Row] = []
        self._plain: list[tuple[dict[str, Any], list[_Row]]] = []
        self._runs: list[Settlement] = []
        self.refused: list[tuple[int, str]] = []  # (job, why): set aside by `settle`
        self.stuck: list[tuple[int, str]] = []  # and those of which even that was refused
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

    def settle(self, raw: sqlite3.Connection, now: float) -> list[int]:
        """Write them inside the caller's transaction. Returns the ids of the jobs whose claim was lost."""
        lost: list[int] = []
        if len(self._simple) == 1:  # prefetch = 1 lives by this
            lost = [] if self._settled(raw, self._simple[0], now) else [self._simple[0][_ID]]
        elif self._simple:
            lost = self._together(raw, lambda: raw.executemany(QUERIES.settle_done, self._simple), self._simple, now)
        for group, rows in self._plain:
            lost += self._together(raw, partial(raw.execute, QUERIES.settle_plain, group), rows, now)
        for s in self._runs:
            if s.job_id not in lost:
                try:
                    _record_run(raw, s, self._worker, now)
                except (sqlite3.IntegrityError, OverflowError) as error:  # the outcome is what counts
                    if not is_rows_fault(error, raw):
                        raise
        return lost + [s.job_id for s in self._others if not self._settled_alone(raw, s, now)]

    def _together(
        self, raw: sqlite3.Connection, settle: Callable[[], sqlite3.Cursor], rows: list[_Row], now: float
    ) -> list[int]:
        """Settle many by one call, which must change as many rows. Returns the ids of the lost."""
        raw.execute("SAVEPOINT settling")
        try:
            together = settle().rowcount == len(rows)
        except REFUSALS as error:
            if not is_rows_fault(error, raw):
                raise
            together = False
        if together:
            raw.execute("RELEASE settling")
            return []
        # Rare: find out which were lost or refused by settling them one at a time.
        raw.execute("ROLLBACK TO settling")
        raw.execute("RELEASE settling")
        return [row[_ID] for row in rows if not self._settled(raw, row, now)]

    def _settled(self, raw: sqlite3.Connection, row: _Row, now: float) -> bool:
        try:
            return raw.execute(QUERIES.settle_done, row).rowcount > 0
        except REFUSALS as error:
            return self._refuse(raw, row[_ID], row[_TOKEN], error, now)

    def _settled_alone(self, raw: sqlite3.Connection, s: Settlement, now: float) -> bool:
        raw.execute("SAVEPOINT alone")
        try:
            settled = _settle_one(raw, self._owner, s, now, self._worker)
        except REFUSALS as error:
            if not is_rows_fault(error, raw):
                raise
            raw.execute("ROLLBACK TO alone")
            settled = self._refuse(raw, s.job_id, s.token, error, now)
        raw.execute("RELEASE alone")
        return settled

    def _refuse(self, raw: sqlite3.Connection, job_id: int, token: int, error: Exception, now: float) -> bool:
        """The database refuses this outcome. False if the claim is lost, or nothing can be written about it."""
        if not is_rows_fault(error, raw):
            raise error
        aside = set_aside(raw, job_id, str(error), now, owner=self._owner, token=token)
        (self.refused if aside else self.stuck).append((job_id, str(error)))
        return aside


def settle_all(
    raw: sqlite3.Connection,
    owner: str,
    settlements: Sequence[Settlement],
    now: float,
    *,
    worker: str | None = None,
) -> list[int]:
    """Settle inside the caller's transaction. Returns the ids of the jobs whose claim was lost.

    Raises StoreError where the database refuses an outcome, and even to have the row set aside.
    """
    outcomes = Outcomes(owner, settlements, now, worker=worker)
    lost = outcomes.settle(raw, now)
    insist(outcomes.stuck)
    return lost


def insist(stuck: Sequence[tuple[int, str]]) -> None:
    """Raises StoreError if there are any."""
    for job_id, why in stuck:
        raise StoreError(f"the database refuses what becomes of job {job_id}: {why}")


class Apart:
    """The answer of `settle_apart`: whose claim was lost, and the refused and the stuck as in `Outcomes`."""

    def __init__(self) -> None:
        self.lost: list[int] = []
        self.refused: list[tuple[int, str]] = []
        self.stuck: list[tuple[int, str]] = []


def settle_apart(
    connection: Connection, owner: str, settlements: Sequence[Settlement], now: float, *, worker: str | None = None
) -> Apart:
    """Settle each in a transaction of its own, since a trigger's RAISE(ROLLBACK) undoes all of one."""
    apart = Apart()

    def settle(s: Settlement) -> None:
        with connection.write() as raw:
            outcomes = Outcomes(owner, [s], now, worker=worker)
            lost = outcomes.settle(raw, now)
        apart.lost += lost
        apart.refused += outcomes.refused
        apart.stuck += outcomes.stuck

    for s in settlements:
        try:
            try:
                settle(s)
            except RolledBack as error:
                if not s.children:
                    raise
                settle(childless(s, error))
        except RolledBack as error:
            if set_aside_alone(connection, s.job_id, str(error), now, owner=owner, token=s.token):
                apart.refused.append((s.job_id, str(error)))
            else:
                apart.stuck.append((s.job_id, str(error)))
                apart.lost.append(s.job_id)
    return apart


def _settle_one(raw: sqlite3.Connection, owner: str, settlement: Settlement, now: float, worker: str | None) -> bool:
    if not settlement.children:
        return _write(raw, owner, settlement, now, worker)
    raw.execute("SAVEPOINT family")
    try:
        settled = _write_family(raw, owner, settlement, now, worker)
    except sqlite3.IntegrityError as error:
        if not is_rows_fault(error, raw):
            raise
        raw.execute("ROLLBACK TO family")
        if exhausted(raw.execute(QUERIES.inserted).fetchone()):
            renumber(raw)
            settled = _write_family(raw, owner, settlement, now, worker)
        else:
            settled = _write(raw, owner, childless(settlement, error), now, worker)
    raw.execute("RELEASE family")
    return settled


def childless(settlement: Settlement, error: Exception) -> Settlement:
    """What becomes of a job whose children a rule of the application's refuses; trying again would meet it again."""
    failure = Failure("children", f"a job that it enqueued was refused by the database: {error}")
    return settlement._replace(status=Status.FAILED, result=None, failure=failure, children=())


def _write_family(raw: sqlite3.Connection, owner: str, settlement: Settlement, now: float, worker: str | None) -> bool:
    # The children after the settlement: a job may enqueue its own unique key again.
    settled = _write(raw, owner, settlement, now, worker)
    if settled:
        insert_children(raw, settlement.children, now)
    return settled


def _write(raw: sqlite3.Connection, owner: str, settlement: Settlement, now: float, worker: str | None) -> bool:
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
    _record_run(raw, settlement, worker, now)
    return True


def record(raw: sqlite3.Connection, settlement: Settlement, failure: Failure, worker: str | None, now: float) -> None:
    """A row of `job_errors` for a job whose row has been written."""
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
    """A row of `job_runs`, if the run is worth one, for a job whose row has been written."""
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
