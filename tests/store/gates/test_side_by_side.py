"""Many workers at once: no limit is exceeded, nothing is left behind, and nobody waits for somebody who waits."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter, defaultdict

import pytest

from supervisor.domain.job import Claim, Status
from supervisor.domain.settlement import Settlement, done, failed
from supervisor.store.base import Engine, JobSelector
from tests.store.gates.conftest import Gates, connect, execute
from tests.store.kit import BROKEN, LOCK, POLICY

SEED = 7
AT_ONCE = POLICY._replace(base=0.0, max_attempts=1000)
TYPES = ("tag", "graph", "sum")


class Worker(threading.Thread):
    """Takes some jobs, and settles them with the next ones. Some attempts fail, and are repeated at once."""

    def __init__(self, engine: Engine, number: int, keys: dict[int, str], ended: threading.Event) -> None:
        super().__init__(name=f"w{number}")
        self.engine, self.keys, self.ended = engine, keys, ended
        self.chance = random.Random(SEED + number)
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with contextlib.closing(self.engine.claims()) as claims:
                held: list[Claim] = []
                while held or not self.ended.is_set():
                    with running_lock:
                        for claim in held:
                            running[self.keys.get(claim.job_id)] -= 1
                    ends = [self._end(claim) for claim in held]
                    wanted = JobSelector(self.chance.choice([TYPES, TYPES[::-1]]))
                    exchange = claims.settle_and_claim(
                        self.name, ends, wanted, self.chance.randrange(1, 6), LOCK, time.time()
                    )
                    assert not exchange.lost
                    assert not exchange.refused
                    held = exchange.claims
                    with running_lock:
                        for claim in held:
                            key = self.keys.get(claim.job_id)
                            running[key] += 1
                            most[key] = max(most[key], running[key])
                            begun.append(claim.job_id)
                    if not held:
                        time.sleep(0.002)
        except Exception as error:
            self.error = error

    def _end(self, claim: Claim) -> Settlement:
        if self.chance.random() < 0.1:
            return failed(claim, BROKEN, AT_ONCE, chance=0.5)
        return done(claim, None, started_at=time.time())


running: Counter[str | None] = Counter()
most: dict[str | None, int] = defaultdict(int)
begun: list[int] = []
running_lock = threading.Lock()


@pytest.mark.parametrize("limit", [1, 3])
def test_workers_keep_limits_order_and_batches(gates: Gates, limit: int) -> None:
    running.clear()
    most.clear()
    begun.clear()
    chance = random.Random(SEED)
    gates.limit(per_key=limit)
    gates.limit("graph", max_running=3)
    raw = connect(gates.url)
    keys: dict[int, str] = {}
    for _ in range(200):
        key = f"k{chance.randrange(8)}"
        insert = f"INSERT INTO jobs (type, concurrency_key, batch) VALUES ('tag', '{key}', 1) RETURNING id"
        [(job,)] = execute(raw, insert)
        keys[job] = key
    execute(raw, "INSERT INTO job_batches (id, type) VALUES (1, 'sum')")
    graph: list[int] = []
    edges: set[tuple[int, int]] = set()
    for _ in range(60):
        before = chance.sample(graph, min(len(graph), chance.randrange(4)))
        held = ", status, hold) VALUES ('graph', 'held', 'after'" if before else ") VALUES ('graph'"
        [(job,)] = execute(raw, f"INSERT INTO jobs (type{held}) RETURNING id")
        keys[job] = "graph"
        graph.append(job)
        for other in before:
            edges.add((other, job))
            execute(raw, f"INSERT INTO job_after (after_id, job_id) VALUES ({other}, {job})")
    execute(raw, "UPDATE job_batches SET closed = 1 WHERE id = 1")

    ended = threading.Event()
    workers = [Worker(gates.desk.engine, number, keys, ended) for number in range(5)]
    for worker in workers:
        worker.start()
    deadline = time.monotonic() + 60
    unfinished = "SELECT count(*) FROM jobs WHERE status IN ('held', 'pending', 'running')"
    while execute(raw, unfinished) != [(0,)]:
        gates.tend()
        assert time.monotonic() < deadline, execute(
            raw, "SELECT status, hold, type, count(*) FROM jobs GROUP BY 1, 2, 3"
        )
        assert not [worker.error for worker in workers if worker.error]
        time.sleep(0.01)
    ended.set()
    for worker in workers:
        worker.join()
        assert worker.error is None

    assert {key: count for key, count in most.items() if key and key != "graph" and count > limit} == {}
    assert most["graph"] <= 3
    first, last = {}, {}
    for place, job in enumerate(begun):
        first.setdefault(job, place)
        last[job] = place
    assert [edge for edge in edges if last[edge[0]] > first[edge[1]]] == []
    assert execute(raw, "SELECT count(*) FROM jobs WHERE type = 'sum'") == [(1,)]
    assert execute(raw, f"SELECT count(*) FROM jobs WHERE status <> '{Status.DONE.value}'") == [(0,)]
    raw.close()
