"""Everybody who changes jobs with gates at the same moment: nobody waits for somebody who waits."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

import psycopg
import pytest

from supervisor.domain.errors import StoreBusy
from supervisor.domain.job import Status
from supervisor.domain.limits import Limits
from supervisor.domain.settlement import Settlement, done, failed, released
from supervisor.store.base import Claims, Engine, JobSelector
from tests.store.kit import BROKEN, LOCK, POLICY, Desk, until
from tests.store.postgres.statistics import FLUSH, sessions

AT_ONCE = POLICY._replace(base=0.0, max_attempts=1000)
TYPES = ("tag", "mail", "sum")
LIMITS = {
    "tag": [None, Limits(per_key=2), Limits(per_key=2, max_running=8, fair=True), Limits(key_interval=1e-3)],
    "mail": [Limits(max_running=2), Limits(max_running=3), Limits(max_running=3, interval=1e-3)],
    "sum": [Limits(max_running=3), Limits(max_running=3, on_conflict="cancel_running")],
}
TOO_MANY = """SELECT type, concurrency_key, count(*) FROM jobs WHERE status = 'running' AND type <> 'mail'
GROUP BY type, concurrency_key HAVING concurrency_key IS NOT NULL AND count(*) > CASE type WHEN 'tag' THEN 2 ELSE 1 END
UNION ALL
SELECT type, NULL, count(*) FROM jobs WHERE status = 'running' AND type <> 'tag' GROUP BY type HAVING count(*) > 3"""
UNFINISHED = "SELECT count(*) FROM jobs WHERE status IN ('held', 'pending', 'running')"
SECONDS = 6.0


class Stress:
    def __init__(self, engine: Engine, seed: int) -> None:
        self.engine, self.seed = engine, seed
        self.errors: list[tuple[BaseException, object]] = []  # with what the server says of each
        self.calm, self.over = threading.Event(), threading.Event()
        self.threads: list[threading.Thread] = []
        self.ids = [1]

    def begin(self, role: Callable[[random.Random], None], number: int = 1) -> None:
        for _ in range(number):
            chance = random.Random(self.seed + len(self.threads))
            thread = threading.Thread(target=self._guarded, args=(role, chance), name=f"w{len(self.threads)}")
            self.threads.append(thread)
            thread.start()

    def _guarded(self, role: Callable[[random.Random], None], chance: random.Random) -> None:
        try:
            role(chance)
        except BaseException as error:
            self.errors.append((error, getattr(getattr(error.__cause__, "diag", None), "message_detail", "")))

    def some(self, chance: random.Random, count: int = 30) -> list[int]:
        """Ids of jobs, of the latest above all."""
        return [max(1, self.ids[-1] - int(chance.expovariate(0.02))) for _ in range(count)]

    # Roles

    def work(self, chance: random.Random) -> None:
        me = threading.current_thread().name
        with closing(self.engine.claims()) as claims:
            settlements: list[Settlement] = []
            while settlements or not self.over.is_set():
                settlements = self._exchange(claims, me, settlements, chance)

    def _exchange(self, claims: Claims, me: str, ends: list[Settlement], chance: random.Random) -> list[Settlement]:
        wanted = JobSelector(TYPES if chance.random() < 0.5 else TYPES[::-1])
        got = claims.settle_and_claim(me, ends, wanted, chance.randrange(1, 8), LOCK, time.time())
        assert not got.refused
        if not got.claims:
            time.sleep(0.003)
        settlements = []
        for claim in got.claims:
            fate = 1.0 if self.calm.is_set() else chance.random()
            if fate < 0.1:
                settlements.append(failed(claim, BROKEN, AT_ONCE, chance=0.5, after=0.02, pause=0.02))
            elif fate < 0.2:
                settlements.append(failed(claim, BROKEN, AT_ONCE, chance=0.5, permanent=fate < 0.15))
            else:
                settlements.append(done(claim, None))
        chance.shuffle(settlements)
        return settlements

    def insert(self, chance: random.Random) -> None:
        """In transactions that stay open for a while; some jobs come after others."""
        with psycopg.connect(self.engine.url) as raw:
            while not self.calm.is_set():
                before = self.some(chance, chance.choice([0, 0, 1, 3]))
                values = (
                    chance.choice(TYPES),
                    f"k{chance.randrange(6)}",
                    *(("held", "after") if before else ("pending", None)),
                )
                expires = time.time() + chance.choice([0.01, 1000.0])
                row = raw.execute(
                    "INSERT INTO jobs (type, concurrency_key, status, hold, expires_at) VALUES (%s, %s, %s, %s, %s)"
                    " RETURNING id",
                    (*values, expires),
                ).fetchone()
                assert row is not None
                raw.execute(
                    "INSERT INTO job_after (after_id, job_id, on_failed)"
                    " SELECT id, %s, %s FROM jobs WHERE id = ANY (%s) AND id < %s FOR KEY SHARE SKIP LOCKED",
                    (row[0], chance.choice(["cancel", "run"]), before, row[0]),
                )
                if before and raw.execute("SELECT 1 FROM job_after WHERE job_id = %s", row).fetchone() is None:
                    raw.execute("DELETE FROM jobs WHERE id = %s", row)
                if chance.random() < 0.3:
                    time.sleep(chance.random() * 0.01)
                    raw.commit()
                    self.ids.append(row[0])

    def operate(self, chance: random.Random) -> None:
        with closing(self.engine.operations()) as store:
            while not self.calm.is_set():
                act = chance.choice([store.actions.cancel_all, store.actions.retry, store.actions.retry])
                act(self.some(chance), time.time())
                if chance.random() < 0.1:
                    store.actions.delete(self.some(chance, 1))
                time.sleep(0.002)

    def limit(self, chance: random.Random) -> None:
        with closing(self.engine.maintenance()) as store:
            while not self.calm.is_set():
                type_ = chance.choice(TYPES)
                with suppress(StoreBusy):  # a maintainer waits for a moment only, and tries again
                    store.gates.choose(type_, chance.choice(LIMITS[type_]), time.time())
                time.sleep(0.01)

    def tend(self, chance: random.Random) -> None:
        with closing(self.engine.maintenance()) as store:
            while not self.over.is_set():
                with suppress(StoreBusy):
                    store.gates.admit_due(time.time())
                    store.gates.cancel_expired(time.time())
                    if chance.random() < 0.1:
                        store.gates.sweep(time.time())
                time.sleep(0.002)

    def watch(self, _: random.Random) -> None:
        with psycopg.connect(self.engine.url, autocommit=True) as raw:
            while not self.over.is_set():
                assert raw.execute(TOO_MANY).fetchall() == []
                time.sleep(0.001)


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nobody_waits_for_somebody_who_waits(
    engine: Engine, desk: Desk, foreign: psycopg.Connection, seed: int
) -> None:
    for type_, limits in LIMITS.items():
        desk.maintenance.gates.choose(type_, limits[-1], time.time())
    before = sessions(foreign)
    stress = Stress(engine, seed)
    for role, number in (
        (stress.work, 5),
        (stress.insert, 2),
        (stress.operate, 2),
        (stress.limit, 1),
        (stress.tend, 2),
    ):
        stress.begin(role, number)
    stress.begin(stress.watch)
    ended = time.monotonic() + SECONDS
    while time.monotonic() < ended and not stress.errors:
        time.sleep(0.05)
    stress.calm.set()
    try:
        until(lambda: stress.errors or foreign.execute(UNFINISHED).fetchone() == (0,), 30.0)
    finally:
        left = foreign.execute(UNFINISHED.replace("count(*)", "id, type, status, hold")).fetchall()
        stress.over.set()
        for thread in stress.threads:
            thread.join()
    assert (stress.errors, left) == ([], []), stress.errors
    foreign.execute(FLUSH)
    until(lambda: sessions(foreign) <= before)
    assert foreign.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone() == (
        0,
    )


@pytest.mark.parametrize("key", ["NULL", "'a'"])
def test_what_has_expired_is_not_started_even_if_its_worker_died_with_it(
    desk: Desk, foreign: psycopg.Connection, key: str
) -> None:
    now = time.time()
    values = f"('tag', {key}, {now + 60})"
    foreign.execute(f"INSERT INTO jobs (type, concurrency_key, expires_at) VALUES {values}".encode())
    gates = desk.maintenance.gates
    gates.admit_due(now)
    claim = desk.one(now=now + 1)
    assert desk.maintenance.locks.settle_dead("w1", [released(claim)], now + 61) == 1
    gates.admit_due(now + 61)
    assert foreign.execute("SELECT status FROM jobs").fetchone() == ("pending",)
    assert desk.claim(now=now + 61) == []
    gates.cancel_expired(now + 61)
    assert (desk.status(claim.job_id), desk.job(claim.job_id).last_error) == (Status.CANCELLED, "expired")
