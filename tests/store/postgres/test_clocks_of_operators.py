"""Commands and delays go by the server's time, whatever the clock of the machine shows on which they are given."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import psycopg
import pytest

from supervisor import AsyncQueue, Enqueue, Queue
from supervisor.cli import main
from supervisor.ops.status import gather
from supervisor.store.base import Engine
from tests.store.kit import Desk

NEAR = 30.0  # seconds between the command and the look at what it has written, at most
Insert = Callable[[str], int]


@pytest.fixture(params=[60.0, 3600.0, -60.0, -3600.0], ids=lambda off: f"{off:+.0f} s")
def off(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> float:
    """By how many seconds the clock of this machine is wrong."""
    right, seconds = time.time, float(request.param)
    monkeypatch.setattr(time, "time", lambda: right() + seconds)
    return seconds


@pytest.fixture
def insert(foreign: psycopg.Connection) -> Insert:
    def inserted(status: str) -> int:
        ended = "NULL" if status in ("pending", "running") else "1"
        claim = "'w1', 1, 9e9" if status == "running" else "NULL, NULL, NULL"
        row = foreign.execute(
            "INSERT INTO jobs (type, status, completed_at, locked_by, locked_at, lock_expires_at)"
            f" VALUES ('tag', '{status}', {ended}, {claim}) RETURNING id"
        ).fetchone()
        assert row is not None
        return int(row[0])

    return inserted


def ages(connection: psycopg.Connection, sql: str) -> list[float]:
    """How long ago these times are, by the server's clock."""
    rows = connection.execute(f"SELECT extract(epoch FROM clock_timestamp())::float - at FROM ({sql}) AS times (at)")
    return [age for (age,) in rows.fetchall()]


def test_the_commands_of_a_queue(
    off: float, desk: Desk, engine: Engine, insert: Insert, foreign: psycopg.Connection
) -> None:
    failed, pending, running = insert("failed"), insert("pending"), insert("running")
    with Queue(engine.url) as queue:
        queue.retry(failed)
        queue.cancel(pending)
        queue.cancel(running)
        queue.pause("tag", force=True)
    found = ages(
        foreign,
        f"SELECT scheduled_at FROM jobs WHERE id = {failed} UNION ALL SELECT updated_at FROM jobs WHERE id = {failed}"
        f" UNION ALL SELECT completed_at FROM jobs WHERE id = {pending}"
        f" UNION ALL SELECT cancel_requested_at FROM jobs WHERE id = {running}"
        " UNION ALL SELECT updated_at FROM job_controls",
    )
    assert len(found) == 5
    assert all(abs(age) < NEAR for age in found)


def test_the_commands_of_the_command_line(
    off: float, desk: Desk, engine: Engine, insert: Insert, foreign: psycopg.Connection
) -> None:
    failed, many, pending = insert("failed"), insert("quarantined"), insert("pending")
    foreign.execute("INSERT INTO job_schedules (name, timing, next_at, type) VALUES ('nightly', '[]', 9e9, 'tag')")
    for command in (
        ["jobs", "retry", str(failed)],
        ["jobs", "retry", "--all", "--status", "quarantined", "--yes"],
        ["jobs", "cancel", str(pending)],
        ["pause", "tag", "--force"],
        ["scale", "tag", "2"],
        ["schedules", "pause", "nightly"],
        ["schedules", "run", "nightly"],
        ["drain", "far", "--force"],
    ):
        assert main([*command, "--database", engine.url]) == 0, command
    try:
        found = ages(
            foreign,
            f"SELECT scheduled_at FROM jobs WHERE id IN ({failed}, {many})"
            f" UNION ALL SELECT completed_at FROM jobs WHERE id = {pending}"
            f" UNION ALL SELECT scheduled_at FROM jobs WHERE id > {pending}"
            " UNION ALL SELECT updated_at FROM job_controls UNION ALL SELECT paused_at FROM job_schedules"
            " UNION ALL SELECT last_at FROM job_schedules"
            " UNION ALL SELECT value::float FROM job_meta WHERE key = 'drained:far'",
        )
    finally:
        assert main(["undrain", "far", "--database", engine.url]) == 0
    assert len(found) == 10  # a pause of a schedule is also told to all maintainers
    assert all(abs(age) < NEAR for age in found)


def test_what_is_due_and_for_how_long(off: float, desk: Desk, engine: Engine, insert: Insert) -> None:
    insert("pending")
    overview = gather(engine, desk.operations)
    [view] = overview.types
    assert view.due == 1
    assert view.oldest_age is not None
    assert view.oldest_age < NEAR


def test_delays_of_programs(off: float, desk: Desk, engine: Engine, foreign: psycopg.Connection) -> None:
    async def awaited() -> None:
        async with AsyncQueue(engine.url) as queue:
            await queue.enqueue("tag", delay="20m")

    with Queue(engine.url) as queue:
        queue.enqueue("tag", delay="20m")
        queue.enqueue("tag", delay="20m", unique_key="k")
        queue.enqueue_many("tag", [1, 2], delay="20m")
        queue.enqueue_many("tag", [1, Enqueue(2, delay="10m", priority=1), Enqueue(3, at=1e9)], delay="20m")
        queue.enqueue_many("copied", [Enqueue(number, priority=1) for number in range(1500)], delay=1200.0)
        with foreign.transaction():
            queue.enqueue("tag", delay=1200, connection=foreign)
            queue.enqueue_many("tag", [1, 2], delay=1200, connection=foreign)
    asyncio.run(awaited())
    assert main(["enqueue", "tag", "--delay", "20m", "--database", engine.url]) == 0
    assert len(ages(foreign, "SELECT scheduled_at FROM jobs")) == 1512
    [half] = ages(foreign, "SELECT scheduled_at FROM jobs WHERE type = 'tag' AND priority = 1")
    delayed = ages(
        foreign, "SELECT scheduled_at FROM jobs WHERE scheduled_at <> 1e9 AND (type, priority) <> ('tag', 1)"
    )
    assert abs(half + 600) < NEAR
    assert len(delayed) == 1510
    assert all(abs(age + 1200) < NEAR for age in delayed)


def test_a_delay_counts_from_the_call_in_a_transaction_that_has_begun_before(
    desk: Desk, engine: Engine, foreign: psycopg.Connection
) -> None:
    with Queue(engine.url) as queue, foreign.transaction():
        foreign.execute("SELECT pg_sleep(0.2)")
        for job_id in (
            queue.enqueue("tag", delay=10.0, connection=foreign),
            *queue.enqueue_many("tag", [1, 2], delay=10.0, connection=foreign),
            *queue.enqueue_many("tag", [Enqueue(1), Enqueue(2)], delay=10.0, connection=foreign),
        ):
            job = queue.job(job_id, connection=foreign)
            assert job.scheduled_at >= job.created_at + 10.2
