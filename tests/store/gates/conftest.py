"""Jobs with gates on a desk of each engine: a program that knows only SQL inserts them, workers claim and settle."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from typing import Any

import pytest

from supervisor.domain.job import Claim, Status
from supervisor.domain.limits import Limits
from supervisor.domain.settlement import Settlement, done, failed
from tests.store.kit import BROKEN, POLICY, Desk


class Gates:
    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.url = desk.engine.url
        self._raw = connect(self.url)

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """One statement of a foreign program; then the maintainer has looked."""
        rows = execute(self._raw, statement)
        self.tend()
        return rows

    def tend(self) -> None:
        while self.desk.maintenance.gates.next_due()[0] <= time.time():
            self.desk.maintenance.gates.admit_due(time.time())

    def limit(self, type_: str = "tag", **limits: Any) -> None:
        self.desk.maintenance.gates.choose(type_, Limits(**limits), time.time())

    def put(self, count: int = 1, type_: str = "tag", **columns: Any) -> list[int]:
        names = "".join(f", {name}" for name in columns)
        values = ", ".join([repr(type_), *(repr(value) for value in columns.values())])
        rows = ", ".join([f"({values})"] * count)
        return sorted(row[0] for row in self.sql(f"INSERT INTO jobs (type{names}) VALUES {rows} RETURNING id"))

    def one(self, type_: str = "tag", **columns: Any) -> int:
        return self.put(type_=type_, **columns)[0]

    def hold(self, job: int) -> str | None:
        """The gate at which it is; None: it may run, or has ended."""
        [(status, hold)] = execute(self._raw, f"SELECT status, hold FROM jobs WHERE id = {job}")
        return str(hold) if status == "held" else None

    def status(self, *jobs: int) -> list[str]:
        return [str(self.desk.status(job)) for job in jobs]

    def pending(self, type_: str = "tag") -> list[int]:
        """What may run, in the order in which it is claimed."""
        where = f"WHERE type = '{type_}' AND status = 'pending' ORDER BY priority DESC, scheduled_at, id"
        return [row[0] for row in execute(self._raw, f"SELECT id FROM jobs {where}")]

    def claim(self, want: int = 1, type_: str = "tag", now: float | None = None) -> list[Claim]:
        return self.desk.claim([type_], want, now=time.time() if now is None else now)

    def settle(self, *settlements: Settlement) -> None:
        assert self.desk.settle(*settlements, now=time.time()) == []

    def work(self, job: int, status: Status = Status.DONE, **retry: Any) -> None:
        """Claim this job, which may run, and let it end so; PENDING is a failed attempt."""
        type_ = self.desk.job(job).type
        claims = self.desk.claim([type_], 1000, now=time.time())
        for claim in claims:
            if claim.job_id != job:
                end = Settlement(claim.job_id, claim.token, Status.PENDING, attempts=-1)
            elif status is Status.DONE:
                end = done(claim, None)
            else:
                end = failed(claim, BROKEN, POLICY, chance=0.5, permanent=status is Status.FAILED)
            self.settle(end)
        assert job in [claim.job_id for claim in claims]


def connect(url: str) -> Any:
    if url.startswith("sqlite:"):
        return sqlite3.connect(url.partition(":///")[2], isolation_level=None, timeout=30)
    import psycopg

    return psycopg.connect(url, autocommit=True)


def execute(raw: Any, statement: str) -> list[tuple[Any, ...]]:
    cursor = raw.execute(statement)
    return cursor.fetchall() if cursor.description else []


@pytest.fixture
def gates(desk: Desk) -> Iterator[Gates]:
    gates = Gates(desk)
    yield gates
    gates._raw.close()
