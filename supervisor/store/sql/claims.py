"""What every engine's claims share: registering, and one row per transaction after one of them was refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

from supervisor.domain.errors import StoreError
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange, JobSelector, WorkerRecord
from supervisor.store.sql.connection import Opened, Row, RowRefused
from supervisor.store.sql.refused_rows import IGNORED, quarantine
from supervisor.store.sql.rows import held_by
from supervisor.store.sql.settling import Refused, Singly

_ROUNDS = 20  # attempts to claim, while only refused rows are found
_MOST_STUCK = 1000
_STUCK_FOR = 60.0  # seconds: the constraint may have been dropped in the meantime


class SqlClaims:
    """Implements `store.base.Claims`, but for `settle_and_claim` and `show_progress`."""

    def __init__(self, connection: Opened) -> None:
        self._connection = connection
        self._queries = connection.queries
        self._worker: str | None = None
        self._singly = Singly(connection)
        self._stuck: dict[int, float] = {}  # rows that cannot even be quarantined, and when (monotonic) to try again

    def register(self, worker: WorkerRecord) -> None:
        self._worker = worker.name
        self._connection.apply(self._queries.register_worker, worker._asdict())

    def held_by(self, owner: str) -> list[Claim]:
        return held_by(self._connection, owner)

    def limits(self, jobs: Sequence[int]) -> Mapping[int, int]:
        rows = self._connection.rows(self._queries.batch_limits, {"jobs": json.dumps(list(jobs))})
        return {row[0]: row[1] for row in rows}

    def close(self) -> None:
        self._connection.close()

    def _without_ignored(
        self, exchange: Exchange, settlements: Sequence[Settlement], owner: str, now: float
    ) -> Exchange:
        """Claims that seem lost and are still held: a trigger ignores what was settled. They are quarantined, as others
        that the database refuses; they would run again and again otherwise.
        """
        if not exchange.lost:
            return exchange
        lost, refused = list(exchange.lost), list(exchange.refused)
        with suppress(StoreError):  # the exchange is committed; its claims must be told
            held = {(claim.job_id, claim.token) for claim in self.held_by(owner)}
            held -= {(claim.job_id, claim.token) for claim in exchange.claims}
            for job, token in [(s.job_id, s.token) for s in settlements if s.job_id in exchange.lost]:
                if (job, token) in held and quarantine(self._connection, job, IGNORED, now, token=token, owner=owner):
                    lost.remove(job)
                    refused.append((job, IGNORED))
        return exchange._replace(lost=lost, refused=tuple(refused))

    # One row per transaction, after one of them was refused

    def _exchange_singly(
        self, settlements: Sequence[Settlement], wanted: JobSelector, want: int, mark: dict[str, Any]
    ) -> Exchange:
        """`mark` has the `owner`, `now`, and when the locks expire."""
        lost, refused, _ = self._singly.settle(mark["owner"], settlements, mark["now"], worker=self._worker)
        claims = self._claim_singly(wanted, want, mark, refused) if want > 0 else []
        return Exchange(claims, lost, refused) if refused else Exchange(claims, lost)

    def _claim_singly(
        self, wanted: JobSelector, want: int, mark: dict[str, Any], refused: list[Refused]
    ) -> list[Claim]:
        """Adds quarantined rows to `refused`."""
        self._stuck = {job: until for job, until in self._stuck.items() if until > monotonic()}
        claims: list[Claim] = []
        for _ in range(_ROUNDS):  # while everything that is found is refused
            found = self._candidates(wanted, mark["now"], want)
            for job_id in found:
                claims += self._claim_alone(job_id, mark, refused)
            if claims or not found:
                break
        return claims

    def _candidates(self, wanted: JobSelector, now: float, want: int) -> list[int]:
        """The ids of the first due rows, best first, without stuck ones."""
        raise NotImplementedError

    def _claim_alone(self, job_id: int, mark: dict[str, Any], refused: list[Refused]) -> list[Claim]:
        token: object = None
        try:
            with self._connection.write() as raw:
                found = raw.execute(self._queries.pending_token, (job_id,)).fetchone()
                if found is None:
                    return []  # another worker has it
                token = found[0]
                rows = raw.execute(self._queries.claim_ids, mark | {"ids": json.dumps([job_id])}).fetchall()
                refuse_impossible(rows, len(rows))
            return [Claim._make(row) for row in rows]
        except RowRefused as error:
            if quarantine(self._connection, job_id, str(error), mark["now"], token=token):
                refused.append((job_id, str(error)))
            elif len(self._stuck) < _MOST_STUCK:
                self._stuck[job_id] = monotonic() + _STUCK_FOR
            return []


def refuse_impossible(rows: list[Row], marked: int) -> None:
    """Raises RowRefused if a trigger has silently kept a row from being marked, or if one has an impossible id.

    Ids below 1 mean "no job" to the scoreboard: nobody could limit, cancel or charge such a run.
    """
    if not marked:
        raise RowRefused(IGNORED)
    for row in rows:
        if row[0] < 1:
            raise RowRefused(f"{row[0]} is not an id")
