"""Writes the outcomes of claims. Every statement matches id, status, owner and token: a lost claim changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from supervisor.domain.job import Status
from supervisor.domain.settlement import MAX_MESSAGE, MAX_TEXT, Failure, Settlement, clipped, follow_up, run_of
from supervisor.domain.text import LONGEST_DELAY
from supervisor.store.sql.connection import Connection, RowRefused, Transaction, quarantine

Refused = tuple[int, str]  # (a job, why)


def settle_singly(
    connection: Connection, owner: str, settlements: Sequence[Settlement], now: float, worker: str | None
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
    constraint again; any other is settled without the rows of its attempt and its run, which matter less, and if that
    is refused, too, without what follows it.
    """
    bare = False
    while True:
        try:
            with connection.write() as raw:
                return settle(connection, raw, owner, s, now, worker, bare=bare)
        except RowRefused as error:
            why = f"a job that it enqueued was refused by the database: {error}"
            if s.children or (bare and follow_up(s)):
                failure = Failure("children", why)
                if s.failure is not None:
                    failure = s.failure._replace(message=f"{s.failure.message}; {why}")
                status = Status.FAILED if s.failure is None else s.status
                follow = s.follow if s.children else None
                s = s._replace(status=status, result=None, failure=failure, children=(), follow=follow)
                bare = False
            elif bare:
                raise
            else:
                bare = True


def settle(
    connection: Connection,
    raw: Transaction,
    owner: str,
    s: Settlement,
    now: float,
    worker: str | None,
    *,
    bare: bool = False,
) -> bool:
    """Inside the caller's transaction; `bare`: without rows of `job_errors` and `job_runs`. Returns False if the claim
    is lost.
    """
    queries, failure = connection.queries, s.failure
    message = None if failure is None else clipped(failure.message, MAX_MESSAGE)
    about = {"id": s.job_id, "token": s.token, "attempts": s.attempts, "worker": worker, "now": now}
    outcome = {
        "owner": owner,
        "status": s.status.value,
        "result": s.result,
        "progress": s.progress,
        "crashes": s.crashes,
        "delay": s.delay,
        "started_at": s.started_at,
        "error": message,
    }
    settled = raw.execute(queries.settle, about | outcome)
    if not settled.rowcount:
        return False
    if hasattr(raw, "settled"):  # what follows is seen to once for all of a transaction
        if settled.fetchone()[0]:
            raw.settled.append(s)
    elif s.pause > 0:
        until = {"id": s.job_id, "until": now + min(s.pause, LONGEST_DELAY)}
        known = queries.statements  # another engine does it with what follows
        for name in ("pause_key", "pause_type", "delay_admitted", "hold_key"):
            raw.execute(known[name], until)
    if s.batch_limit:
        raw.execute(queries.limit_batch, {"id": s.job_id, "most": s.batch_limit})
    if not bare and failure is not None and failure.kind != "cancelled":
        texts = {
            "message": message,
            "traceback": failure.traceback and clipped(failure.traceback, MAX_TEXT),
            "stderr": failure.stderr and clipped(failure.stderr, MAX_TEXT),
        }
        raw.execute(queries.insert_error, failure._asdict() | texts | about)
    if not bare:
        record_run(connection, raw, s, now, worker)
    for child in (*s.children, *follow_up(s)):  # after the settlement: a job may enqueue its own unique key again
        connection.insert(raw, child, now)
    return True


def record_run(connection: Connection, raw: Transaction, s: Settlement, now: float, worker: str | None) -> None:
    """Insert a row of `job_runs`, if the run is recorded, for a job whose row has been written."""
    if (run := run_of(s)) is not None:
        outcome, usage = run
        about = {"id": s.job_id, "token": s.token, "attempts": s.attempts, "worker": worker, "now": now}
        raw.execute(connection.queries.insert_run, usage._asdict() | about | {"outcome": outcome})
