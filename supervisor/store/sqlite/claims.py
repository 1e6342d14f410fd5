"""Settles finished jobs and claims the next ones, in one short transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from time import monotonic
from typing import Any

from supervisor.domain.errors import StoreUnavailable
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.store.base import Exchange, JobSelector, WorkerRecord
from supervisor.store.sql.connection import RowRefused
from supervisor.store.sql.refused_rows import IGNORED, quarantine
from supervisor.store.sql.rows import held_by, selected
from supervisor.store.sql.settling import Refused, Singly
from supervisor.store.sqlite.connection import QUERIES, Connection, Row
from supervisor.store.sqlite.settling import Outcomes

_ROUNDS = 20  # attempts to claim, while only refused rows are found
_MOST_STUCK = 1000
_STUCK_FOR = 60.0  # seconds: the constraint may have been dropped in the meantime


class SqliteClaims:
    """Implements `store.base.Claims`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._worker: str | None = None
        self._singly = Singly(connection)
        self._stuck: dict[int, float] = {}  # rows that cannot even be quarantined, and when (monotonic) to try again
        self._priority = 0  # of the group of the last claim: the next one is most likely from it, too

    def register(self, worker: WorkerRecord) -> None:
        self._worker = worker.name
        self._connection.apply(QUERIES.register_worker, worker._asdict())

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
            pass
        except StoreUnavailable:
            if not self._connection.inserter.has_run_out():  # of ids
                raise
        lost, refused, _ = self._singly.settle(owner, settlements, now, worker=self._worker)
        claims = self._claim_singly(wanted, want, mark, refused) if want > 0 else []
        return Exchange(claims, lost, refused) if refused else Exchange(claims, lost)

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
                claims = self._claim_first(raw, wanted.types[0], mark)
            if want > 0 and not claims:
                claims = self._claim_due(raw, wanted, mark, want)
                if not (claims or settlements):
                    raw.execute(
                        "ROLLBACK"
                    )  # a commit would make the maintainer wake us for a row that cannot be claimed
        return Exchange(claims, lost)

    def _claim_due(self, raw: sqlite3.Connection, wanted: JobSelector, mark: dict[str, Any], want: int) -> list[Claim]:
        groups = self._due(wanted, mark["now"])
        if not groups:
            return []
        rows = self._claim(raw, groups, mark, want)
        self._priority = groups[0][2]
        return [Claim._make(row) for row in rows]

    def held_by(self, owner: str) -> list[Claim]:
        return held_by(self._connection, owner)

    def show_progress(
        self, owner: str, runs: Sequence[tuple[int, int]], fraction: float, text: str, now: float
    ) -> None:
        with self._connection.write() as raw:
            for job, token in runs:
                raw.execute(QUERIES.show_progress, (fraction, text, now, job, owner, token))

    def limits(self, jobs: Sequence[int]) -> Mapping[int, int]:
        return {row[0]: row[1] for row in self._connection.rows(QUERIES.batch_limits, {"jobs": json.dumps(list(jobs))})}

    def _anything_due(self, wanted: JobSelector, now: float) -> bool:
        """The cheap check first: after a sleep the pages of the full one are no longer in the CPU's caches."""
        if len(wanted.types) == 1:
            first = (wanted.types[0], self._priority, now)
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

    def _claim_first(self, raw: sqlite3.Connection, type_: str, mark: dict[str, Any]) -> list[Claim]:
        """The fast way to one job: most queues hold a single group of a pool's type."""
        row = raw.execute(QUERIES.claim_first, (type_, self._priority, mark["now"])).fetchone()
        if row is None or row[0] in self._stuck:
            return []
        marked = raw.execute(QUERIES.claim_one, (mark["owner"], mark["now"], mark["expires_at"], row[0])).rowcount
        _refuse_impossible([row], marked)
        return [Claim._make(row)]

    def _claim(self, raw: sqlite3.Connection, groups: list[Row], mark: dict[str, Any], want: int) -> list[Row]:
        """Claim the first `want` due rows of the groups, in tiers of equal priority."""
        claimed: list[Row] = []
        for tier in _tiers(groups):
            if len(claimed) == want:
                break
            if len(tier) == 1 and not self._stuck:
                rows = raw.execute(
                    QUERIES.claim_group, mark | _named(tier[0]) | {"want": want - len(claimed)}
                ).fetchall()
            else:
                ids = self._first(raw, tier, mark["now"], want - len(claimed))
                rows = raw.execute(QUERIES.claim_ids, mark | {"ids": json.dumps(ids)}).fetchall() if ids else []
                if not ids:
                    continue
            _refuse_impossible(rows, len(rows))
            if len(rows) > 1:
                rows.sort(key=_place)  # RETURNING guarantees no order
            claimed += rows
        return claimed

    def _first(self, raw: sqlite3.Connection, tier: list[Row], now: float, want: int) -> list[int]:
        """The ids of the first rows of groups of the same priority, without stuck ones."""
        peek = {"now": now, "want": want + len(self._stuck)}
        rows = sorted(row for group in tier for row in raw.execute(QUERIES.peek_group, _named(group) | peek))
        return [job_id for _, job_id in rows if job_id not in self._stuck][:want]

    # One row per transaction, after one of them was refused

    def _claim_singly(
        self, wanted: JobSelector, want: int, mark: dict[str, Any], refused: list[Refused]
    ) -> list[Claim]:
        """As `_claim_due`; adds quarantined rows to `refused`."""
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
        ids: list[int] = []
        with self._connection.write() as raw:
            for tier in _tiers(self._due(wanted, now)):
                ids += self._first(raw, tier, now, want - len(ids))
                if len(ids) == want:
                    break
        return ids

    def _claim_alone(self, job_id: int, mark: dict[str, Any], refused: list[Refused]) -> list[Claim]:
        token: object = None
        try:
            with self._connection.write() as raw:
                found = raw.execute(QUERIES.pending_token, (job_id,)).fetchone()
                if found is None:
                    return []  # another worker has it
                token = found[0]
                rows = raw.execute(QUERIES.claim_ids, mark | {"ids": json.dumps([job_id])}).fetchall()
                _refuse_impossible(rows, len(rows))
            return [Claim._make(row) for row in rows]
        except RowRefused as error:
            if quarantine(self._connection, job_id, str(error), mark["now"], token=token):
                refused.append((job_id, str(error)))
            elif len(self._stuck) < _MOST_STUCK:
                self._stuck[job_id] = monotonic() + _STUCK_FOR
            return []

    def close(self) -> None:
        self._connection.close()


def _tiers(groups: list[Row]) -> Iterator[list[Row]]:
    """Groups of equal priority together, in the given order."""
    for _, tier in groupby(groups, _priority):
        yield list(tier)


def _refuse_impossible(rows: list[Row], marked: int) -> None:
    """Raises RowRefused if a trigger has silently kept a row from being marked, or if one has an impossible id.

    Ids below 1 mean "no job" to the scoreboard: nobody could limit, cancel or charge such a run.
    """
    if not marked:
        raise RowRefused(IGNORED)
    for row in rows:
        if row[0] < 1:
            raise RowRefused(f"{row[0]} is not an id")


def _named(group: Row) -> dict[str, Any]:
    return {"type": group[0], "requires": group[1], "priority": group[2]}


def _priority(group: Row) -> int:
    return int(group[2])


def _place(row: Row) -> tuple[float, int]:
    return row[7], row[0]
