"""What the conformance suite says about an engine, in few words. Times are Unix seconds of our own."""

from __future__ import annotations

import contextlib
import itertools
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from supervisor.domain.job import Claim, Job, NewJob, Status
from supervisor.domain.settlement import Failure, RetryPolicy, Settlement, done, failed
from supervisor.store.base import (
    Claims,
    Engine,
    JobSelector,
    MaintenanceStore,
    Operations,
    Producer,
    SettledAndClaimed,
    SupervisorRecord,
    WorkerRecord,
)
from supervisor.store.moving import KEYS
from tests.fresh import make_tables

ENGINES = ("postgres", "sqlite")


def emptied(url: str) -> str:
    """The same database of a server, without a row in it; ids begin at 1 again."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('jobs')").fetchone() != (None,):
            tables = ", ".join(sorted({*KEYS, "job_ends"} - {"job_meta"}))
            connection.execute(
                f"TRUNCATE {tables} RESTART IDENTITY; SELECT setval('job_sleepers', 0), setval('job_watchers', 0)"
            )
            connection.execute(
                "DELETE FROM job_meta WHERE key LIKE 'alert:%' OR key LIKE 'host:%' OR key LIKE 'gone:%'"
            )
    return url


T0 = 1_000_000.0  # when jobs become due, unless a test says otherwise
NOW = T0 + 1000.0
LOCK = 60.0
POLICY = RetryPolicy(max_attempts=3, backoff="fixed", base=10.0, jitter=0.0)
BROKEN = Failure("exception", "ValueError: no such picture", traceback="line 1")


@dataclass
class Desk:
    """One engine with its roles opened once."""

    engine: Engine
    producer: Producer
    claims: Claims
    maintenance: MaintenanceStore
    operations: Operations
    _open: list[Any] = field(default_factory=list)

    @classmethod
    def at(cls, engine: Engine) -> Desk:
        kind, _, path = engine.url.partition(":///")
        if kind == "sqlite" and not Path(path).exists():
            make_tables(Path(path))
        else:
            engine.database.migrate()
        roles = engine.producer(), engine.claims(), engine.maintenance(), engine.operations()
        return cls(engine, *roles, list(roles))

    def close(self) -> None:
        for role in self._open:
            role.close()

    # Jobs

    def put(self, type_: str = "tag", at: float = T0, payload: str = "{}", **fields: Any) -> int:
        return self.producer.enqueue([NewJob(type_, payload, scheduled_at=at, **fields)])[0]

    def job(self, job_id: int) -> Job:
        job = self.producer.job(job_id)
        assert job is not None
        return job

    def status(self, job_id: int) -> Status:
        return self.job(job_id).status

    # Claims

    def claim(
        self,
        types: Iterable[str] = ("tag",),
        want: int = 1,
        *,
        owner: str = "w1",
        now: float = NOW,
        capabilities: str = "",
        lock_time: float = LOCK,
        min_priority: int | None = None,
    ) -> list[Claim]:
        wanted = JobSelector(tuple(types), capabilities, min_priority)
        return self.claims.settle_and_claim(owner, [], wanted, want, lock_time, now).claims

    def one(self, **options: Any) -> Claim:
        claims = self.claim(**options)
        assert len(claims) == 1
        return claims[0]

    def settle(self, *settlements: Settlement, owner: str = "w1", now: float = NOW) -> list[int]:
        """Returns the ids of the jobs whose claim was lost."""
        return self.claims.settle_and_claim(owner, settlements, JobSelector(()), 0, LOCK, now).lost

    def settle_and_claim(self, *settlements: Settlement, want: int, now: float = NOW) -> SettledAndClaimed:
        return self.claims.settle_and_claim("w1", settlements, JobSelector(("tag",)), want, LOCK, now)

    def finish(self, job_id: int, status: Status = Status.DONE, *, at: float = NOW) -> None:
        """Bring a pending job of its own type to an end."""
        type_ = self.job(job_id).type
        claim = next(c for c in self.claim([type_], 1000, owner="finisher", now=at) if c.job_id == job_id)
        end = {
            Status.DONE: lambda: done(claim, '"ok"', started_at=at),
            Status.FAILED: lambda: failed(claim, BROKEN, POLICY, chance=0.5, permanent=True),
            Status.QUARANTINED: lambda: Settlement(
                job_id, claim.token, Status.QUARANTINED, crashes=1, attempts=-1, failure=BROKEN
            ),
        }[status]()
        assert self.settle(end, owner="finisher", now=at) == []
        self.settle(*_back(self.maintenance.locks.held_by("finisher")), owner="finisher", now=at)


def _back(claims: Iterable[Claim]) -> list[Settlement]:
    return [Settlement(c.job_id, c.token, Status.PENDING, attempts=-1) for c in claims]


_numbers = itertools.count(1)


def worker_record(incarnation: str, supervisor: str = "s1", **fields: Any) -> WorkerRecord:
    values = {"pool": "tag", "name": f"tag-{next(_numbers)}", "pid": 1, "slot": 0, "policy": "{}"}
    return WorkerRecord(incarnation, supervisor, started_at=T0, **(values | fields))


def supervisor_record(identity: str, engine: Engine, lock: str, **fields: Any) -> SupervisorRecord:
    values = {
        "pid": 1,
        "host": socket.gethostname(),
        "machine_id": engine.ownership.machine_id,
        "boot_id": engine.ownership.boot_id,
        "owner_lock": lock,
        "scoreboard": "/nowhere",
        "config": "supervisor.toml",
        "version": "0",
        "started_at": T0,
    }
    return SupervisorRecord(identity, **(values | fields))


def commits_nothing(engine: Engine, act: Callable[[], object]) -> bool:
    """Whether this leaves the version as it is. A server's is that of all its databases, in which other tests may
    commit at the same time: there one quiet moment among many will do.
    """
    with contextlib.closing(engine.changes()) as feed:
        for _ in range(1 if engine.database.file else 100):
            before = feed.version()
            act()
            if feed.version() == before:
                return True
    return False


def until(condition: Callable[[], object], patience: float = 20.0) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.002)


def python(*arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def execute(url: str, statement: str) -> None:
    """One statement of another program's, on its own connection."""
    if url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(url.partition(":///")[2], isolation_level=None)) as connection:
            connection.execute(statement)
    else:
        import psycopg

        with psycopg.connect(url, autocommit=True) as server:
            server.execute(statement.encode())
