"""Writes the outcomes of claims. Every statement matches id, status, owner and token: a lost claim changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, Failure, Settlement, clipped, run_of
from supervisor.store.sql.connection import Connection, Queries, RowRefused, Transaction, quarantine

Refused = tuple[int, str]  # (a job, why)
Insert = Callable[[Any, NewJob, float], int | None]  # as `Connection.insert`


def settle_singly(
    connection: Connection, owner: str, settlements: Sequence[Settlement], now: float, *, worker: str | None = None
) -> tuple[list[int], list[Refused], list[Refused]]:
    """Settle each in a transaction of its own, after the database has refused one of them. A job whose outcome it
    refuses is quarantined.

    Returns (jobs whose outcome is lost, those quarantined, those lost that could not even be quarantined).
    """
    lost: list[int] = []
    refused: list[Refused] = []
    stuck: list[Refused] = []
    for s in settlements:
        try:
            settled = _settle_alone(connection, owner, s, now, worker)
        except RowRefused as error:
            settled = quarantine(connection, s.job_id, str(error), now, token=s.token, owner=owner)
            (refused if settled else stuck).append((s.job_id, str(error)))
        if not settled:
            lost.append(s.job_id)
    return lost, refused, stuck


def _settle_alone(connection: Connection, owner: str, s: Settlement, now: float, worker: str | None) -> bool:
    """Once more if it is refused: a job whose children are refused fails with that, since a retry would meet the same
    constraint again; any other is settled without the rows of its attempt and its run, which matter less.
    """
    try:
        with connection.write() as raw:
            return settle(connection.queries, connection.insert, raw, owner, s, now, worker)
    except RowRefused as error:
        bare = not s.children
        if s.children:
            failure = Failure("children", f"a job that it enqueued was refused by the database: {error}")
            s = s._replace(status=Status.FAILED, result=None, failure=failure, children=())
    with connection.write() as raw:
        return settle(connection.queries, connection.insert, raw, owner, s, now, worker, bare=bare)


def settle(
    queries: Queries,
    insert: Insert,
    raw: Transaction,
    owner: str,
    settlement: Settlement,
    now: float,
    worker: str | None,
    *,
    bare: bool = False,
) -> bool:
    """Inside the caller's transaction; `bare`: without rows of `job_errors` and `job_runs`. Returns False if the claim
    is lost.
    """
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
    if not bare and failure is not None and failure.kind != "cancelled":
        record(queries, raw, settlement, failure, worker, now)
    if not bare:
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
