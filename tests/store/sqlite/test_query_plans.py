"""The hot statements use their index, and what a claim costs does not grow with rows it cannot take.

Costs are counted in steps of SQLite's virtual machine, not in time, so they are the same everywhere.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.domain.job import covers
from supervisor.store.sqlite.connection import QUERIES
from tests.fresh import make_tables

LARGE = 100_000
SMALL = 1_000
# By the index that they use, or what their plans say of it.
PLANS = {
    "jobs_unfinished": (
        "groups claim_group peek_group claim_first count_before count_waiting held_by expired needs_renewal "
        "renew cancels unhandled awaiting_retry written_later count_pending unfinished_ids running_ids "
        "backlog"
    ),
    "PRIMARY KEY": (
        "claim_one bring_forward match_among match_stretch stretch jobs_among settle_done settle_plain settle "
        "claim_ids job job_status prune prunable prune_until insert_run"
    ),
    "jobs_unique_key": "find_unique",
    "jobs_once": "find_once",
    "jobs_unsuccessful_type": "unsuccessful_ids unsuccessful_types count_open",
    "job_errors_time": "recent_errors failures_by_type",
    "jobs_unsuccessful": "unsuccessful_since",
    "job_errors_job": "job_errors",
    "(job_id=?)": "job_runs",
    "(job_id>? AND job_id<?)": "prune_runs",
    "rowid>? AND rowid<?": "prune_batch_limits prune_second_chances",
    "jobs_unsuccessful (status=? AND completed_at>? AND completed_at<?": "failed_after",
    "job_workers_supervisor": "workers_of",
    "PRIMARY KEY (minute>? AND minute<?)": "history history_in_steps add_hour forget_minutes",
    "PRIMARY KEY (minute<?)": "first_minute has_history_before",
}
PARAMETER = re.compile(r":(\w+)")
NUMBERED = re.compile(r"\?(\d+)")


def planned(connection: sqlite3.Connection, name: str) -> list[str]:
    sql = QUERIES.statements[name]
    named = {key: "[]" if key in ("types", "ids", "owners", "started") else None for key in PARAMETER.findall(sql)}
    numbered = {int(number) for number in NUMBERED.findall(sql)}
    parameters: Any = named or [None] * (len(numbered) or sql.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters)]


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path = tmp_path_factory.mktemp("plans") / "jobs.db"
    make_tables(path)
    connection = connected(path)
    yield connection
    connection.close()


def connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.create_function("covers", 2, lambda has, needs: covers(has, needs.decode()), deterministic=True)
    connection.create_function("next_kind", 2, lambda _, requires: requires + b"\0")
    return connection


@pytest.mark.parametrize(("name", "index"), [(name, index) for index in PLANS for name in PLANS[index].split()])
def test_a_hot_statement_uses_its_index_and_never_reads_the_whole_table(
    database: sqlite3.Connection, name: str, index: str
) -> None:
    plan = planned(database, name)

    assert any(index in step for step in plan), plan
    full = [
        step
        for step in plan
        if re.match(r"SCAN (jobs|j|e|job_errors|job_runs|job_workers|job_history)\b(?!.*USING)", step)
    ]
    assert full == [], plan


@pytest.mark.parametrize("name", ["groups", "claim_first", "claim_group", "peek_group", "unhandled", "failed_after"])
def test_rows_come_out_of_the_index_in_their_order(database: sqlite3.Connection, name: str) -> None:
    plan = planned(database, name)

    assert not any("TEMP B-TREE" in step for step in plan), plan


# What a claim costs


def steps(connection: sqlite3.Connection, work: Callable[[], object]) -> int:
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    connection.set_progress_handler(tick, 1)
    work()
    connection.set_progress_handler(None, 1)
    return count


def claim_first(connection: sqlite3.Connection) -> list[int]:
    """What it runs for a single job of a single group."""
    return [row[0] for row in connection.execute(QUERIES.claim_first, ("tag", 0, 1000.0))]


def claim(connection: sqlite3.Connection) -> list[int]:
    """What a worker's exchange runs for its best group."""
    wanted = {"types": '["tag", "caption"]', "capabilities": "cpu", "least": -100}
    due = [row for row in connection.execute(QUERIES.groups, wanted) if row[3] is not None and row[3] <= 1000]
    best = max(due, key=lambda row: row[2])
    group = dict(zip(("type", "requires", "priority"), best, strict=False))
    mark = {"owner": "w1", "now": 1000.0, "expires_at": 1060.0, "want": 5}
    return sorted(row[0] for row in connection.execute(QUERIES.claim_group, group | mark))


def held(connection: sqlite3.Connection) -> list[int]:
    """What recovery asks for a dead worker."""
    return [row[0] for row in connection.execute(QUERIES.held_by, {"owner": "w1"})]


def fill(connection: sqlite3.Connection, kind: str, count: int) -> None:
    row = {
        "finished": "'tag', 'done', 0, '', 0",
        "failed": "'tag', 'failed', 0, '', 0",
        "delayed at a higher priority": "'tag', 'pending', 50, '', 2000 + n",
        "of other types": "'other', 'pending', 0, '', n % 900",
        "beyond our capabilities": "'tag', 'pending', 50, 'gpu', n % 900",
        "due, in the same group": "'tag', 'pending', 0, '', 900",
        "held by others": "'tag', 'running', 0, '', 0",
    }[kind]
    connection.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT ?) "
        f"INSERT INTO jobs (type, status, priority, requires, scheduled_at) SELECT {row} FROM numbers",
        [count],
    )


def cost(path: Path, kind: str, count: int, work: Callable[[sqlite3.Connection], list[int]]) -> int:
    make_tables(path)
    connection = connected(path)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    for _ in range(10):
        connection.execute("INSERT INTO jobs (type, scheduled_at) VALUES ('tag', 1)")
    fill(connection, kind, count)
    connection.execute("COMMIT")
    try:
        found: list[int] = []
        used = steps(connection, lambda: found.extend(work(connection)))
        assert found == {claim: [1, 2, 3, 4, 5], claim_first: [1], held: []}[work]
        return used
    finally:
        connection.close()


ANY = ("finished", "of other types", "due, in the same group")
DELAYED = "delayed at a higher priority"


@pytest.mark.parametrize(
    ("work", "kind"),
    [
        *((claim, kind) for kind in (*ANY, "failed", DELAYED, "beyond our capabilities", "held by others")),
        *((claim_first, kind) for kind in (*ANY, "held by others")),
        *((held, kind) for kind in (*ANY, DELAYED)),
    ],
)
def test_a_claim_and_what_recovery_asks_cost_the_same_beside_a_hundred_times_as_many_rows(
    tmp_path: Path, work: Callable[[sqlite3.Connection], list[int]], kind: str
) -> None:
    small = cost(tmp_path / "small.db", kind, SMALL, work)
    large = cost(tmp_path / "large.db", kind, LARGE, work)

    assert large <= small * 1.3, (small, large)
