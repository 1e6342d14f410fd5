"""Thousands of types, or of requirements: looks cost little, and find what the walk along the groups finds."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.domain.enqueueing import new_job
from supervisor.domain.job import NewJob
from supervisor.engine import open_engine
from supervisor.ops.status import gather
from supervisor.ops.views import MOST_TYPES
from supervisor.store.base import Depth, JobSelector
from supervisor.store.sql import backlog
from supervisor.store.sqlite.connection import QUERIES
from tests.store.kit import Desk

MANY = 3000
KINDS: dict[str, Callable[[int], NewJob]] = {
    "types": lambda number: new_job(f"type-{number}"),
    "requirements": lambda number: new_job("tag", requires=[f"word-{number}"]),
}


@pytest.fixture(params=sorted(KINDS))
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    desk = Desk.at(open_engine(f"sqlite:///{tmp_path}/jobs.db"))
    desk.producer.enqueue([KINDS[request.param](number) for number in range(MANY)])
    yield desk
    desk.close()


def counted(desk: Desk, tmp_path: Path, sql: str) -> int:
    """Steps of SQLite's machine, in hundreds."""
    steps = [0]

    def step() -> None:
        steps[0] += 1

    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        raw.set_progress_handler(step, 100)
        raw.execute(sql).fetchall()
    return steps[0]


def test_what_runs_is_found_by_a_few_steps_a_kind(desk: Desk, tmp_path: Path) -> None:
    assert counted(desk, tmp_path, "SELECT id FROM jobs_held WHERE locked_by = 'x'") < MANY * 0.6


def test_what_runs_is_found_among_many_kinds(desk: Desk, tmp_path: Path) -> None:
    wanted = JobSelector(("tag", "type-7", "type-2999"), "word-7 word-2999")
    claims = desk.claims.settle_and_claim("worker", [], wanted, 10, 60.0, time.time()).claims
    assert len(claims) == 2
    assert desk.maintenance.locks.held_by("worker") == claims
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        walked = raw.execute("SELECT id FROM jobs WHERE status = 'running'").fetchall()
        assert sorted(raw.execute("SELECT id FROM jobs_held").fetchall()) == sorted(walked)


def test_the_backlog_is_the_same_by_either_way(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    desk.producer.enqueue([new_job("tag", delay=60.0), new_job("type-3", delay=90.0), new_job("later", delay=5.0)])
    quick = desk.operations.backlog.by_type(now + 1, 10_000)
    connection = desk.operations._connection
    assert connection.row(QUERIES.crowded) == (1,)
    monkeypatch.setattr(backlog, "_crowded", lambda _: False)
    walked = desk.operations.backlog.by_type(now + 1, 10_000)
    assert told(walked) == told(quick)
    assert quick["later"] == walked["later"]


def told(found: dict[str, Depth]) -> dict[str, tuple[int, float | None]]:
    return {name: (depth.due, depth.oldest) for name, depth in found.items()}


def test_a_status_of_many_kinds_costs_little(desk: Desk) -> None:
    began = time.process_time()
    shown = gather(desk.engine, desk.operations)
    assert time.process_time() - began < 1.0
    assert shown.jobs["pending"] == MANY
    assert len(shown.types) <= MOST_TYPES
