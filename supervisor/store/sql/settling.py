"""Writes the outcomes of claims. Every statement matches id, status, owner and token: a lost claim changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, Failure, Settlement, clipped, run_of
from supervisor.store.queries import Queries
from supervisor.store.sql.connection import Connection, RowRefused, Transaction, quarantine

Refused = tuple[int, str]  # (a job, why)
Insert = Callable[[Any, NewJob, float], int | None]  # as `Inserter.insert`


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
        """With everything; if that is refused, without the run's row, which matters less; then without the row of the
        failed attempt; then without its children.
        """

        connection, inserter = self._connection, self._connection.inserter

        def attempt(s: Settlement, *, history: bool = True, note: bool = True) -> bool:
            told = {"history": history, "note": note}
            return inserter.with_room(
                lambda raw: settle(connection.queries, inserter.insert, raw, owner, s, now, worker, **told)
            )

        try:
            return attempt(s)
        except RowRefused:
            pass
        try:
            return attempt(s, history=False)
        except RowRefused as error:
            if s.failure is not None:
                return attempt(s, history=False, note=False)
            if not s.children:
                raise
            # A constraint of the application's; a retry would meet it again.
            failure = Failure("children", f"a job that it enqueued was refused by the database: {error}")
            return attempt(s._replace(status=Status.FAILED, result=None, failure=failure, children=()))


def settle(
    queries: Queries,
    insert: Insert,
    raw: Transaction,
    owner: str,
    settlement: Settlement,
    now: float,
    worker: str | None,
    *,
    history: bool = True,
    note: bool = True,
) -> bool:
    """Inside the caller's transaction. Returns False if the claim is lost."""
    failure = settlement.failure
    changed = raw.execute(
        queries.settle,
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
        raw.execute(queries.limit_batch, {"id": settlement.job_id, "most": settlement.batch_limit})
    if note and failure is not None and failure.kind != "cancelled":
        record(queries, raw, settlement, failure, worker, now)
    if history:
        record_run(queries, raw, settlement, worker, now)
    for child in settlement.children:  # after the settlement: a job may enqueue its own unique key again
        insert(raw, child, now)
    return True


def record(
    queries: Queries, raw: Transaction, settlement: Settlement, failure: Failure, worker: str | None, now: float
) -> None:
    """Insert a row of `job_errors` for a job whose row has been written."""
    fields: dict[str, Any] = {
        name: getattr(failure, name) for name in ("kind", "exit_code", "signal", "peak_memory", "duration")
    }
    raw.execute(
        queries.insert_error,
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


def record_run(queries: Queries, raw: Transaction, settlement: Settlement, worker: str | None, now: float) -> None:
    """Insert a row of `job_runs`, if the run is recorded, for a job whose row has been written."""
    run = run_of(settlement)
    if run is None:
        return
    outcome, usage = run
    raw.execute(
        queries.insert_run,
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
