"""What operators look at costs no more because the table is large."""

from __future__ import annotations

import psycopg
import pytest

from supervisor.domain.job import Status
from supervisor.store.postgres import maintenance as statistics
from supervisor.store.postgres.statements import QUERIES
from tests.store.kit import NOW, Desk


def read(foreign: psycopg.Connection, statement: str, parameters: dict[str, object]) -> int:
    """Pages of tables and indexes that a statement looks at."""
    foreign.execute("ANALYZE jobs")  # as autovacuum does
    row = foreign.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode(), parameters).fetchone()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


@pytest.fixture
def done(desk: Desk, foreign: psycopg.Connection) -> None:
    foreign.execute(
        "INSERT INTO jobs (type, status, started_at, completed_at, payload)"
        " SELECT 'tag', CASE WHEN n %% 4 = 0 THEN 'cancelled' ELSE 'done' END, %s, %s, repeat('x', 300)"
        " FROM generate_series(1, 40000) AS n",
        (NOW - 2, NOW),
    )


@pytest.mark.usefixtures("done")
def test_jobs_that_have_ended_are_counted_exactly_or_estimated(
    desk: Desk, foreign: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign.execute("ANALYZE jobs")
    exact = {("tag", Status.DONE, 30_000), ("tag", Status.CANCELLED, 10_000)}
    assert set(desk.operations.statistics.closed_counts()) == exact
    whole = read(foreign, QUERIES.count_closed, {"most": statistics._COUNTED})
    monkeypatch.setattr(statistics, "_COUNTED", 4000)
    estimate = {status: count for _, status, count in desk.operations.statistics.closed_counts()}
    assert estimate[Status.DONE] == pytest.approx(30_000, rel=0.3)
    assert estimate[Status.CANCELLED] == pytest.approx(10_000, rel=0.3)
    assert read(foreign, QUERIES.count_closed, {"most": 4000}) < whole / 5


@pytest.mark.usefixtures("done")
def test_how_long_jobs_take_is_seen_below_any_number_that_wait(desk: Desk, foreign: psycopg.Connection) -> None:
    alone = read(foreign, QUERIES.slowest_types, {})
    running = desk.put("next")
    assert desk.one(types=["next"]).job_id == running
    foreign.execute("INSERT INTO jobs (type) SELECT 'later' FROM generate_series(1, 200000)")
    [speed] = desk.operations.statistics.speeds()
    assert (speed.type, speed.jobs, speed.mean) == ("tag", 5000, 2.0)
    assert read(foreign, QUERIES.slowest_types, {}) < 2 * alone
