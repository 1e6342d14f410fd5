"""What a list costs does not grow with the table, whether few of its jobs have failed or most.

Costs are counted in steps of SQLite's virtual machine, not in time, so they are the same everywhere.
"""

from __future__ import annotations

import functools
import sqlite3
from pathlib import Path

import pytest

from supervisor.domain.job import Status
from supervisor.store.base import Filter, Page
from supervisor.store.sql import jobs
from supervisor.store.sqlite import SqliteEngine
from tests.fresh import make_tables
from tests.store.sqlite.test_query_plans import LARGE, steps

SMALL = LARGE // 10  # more of each than one look compares

# How the status of row n of :count comes about. There are always at least ten failed ones of each type.
TABLES = {
    "few have failed": "CASE WHEN n <= 100 THEN 'failed' ELSE 'done' END",
    "most have failed": "CASE WHEN n % 10 = 0 THEN 'done' ELSE 'failed' END",
    "long ago many have failed": "CASE WHEN n <= :count / 2 THEN 'failed' ELSE 'done' END",
    "all wait": "CASE WHEN n <= 100 THEN 'quarantined' ELSE 'pending' END",
}
FAILED = Filter((Status.FAILED, Status.QUARANTINED))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("databases")


@functools.cache
def filled(folder: Path, status: str, count: int) -> Path:
    path = folder / f"{len(list(folder.iterdir()))}.db"
    make_tables(path)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(
        "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers LIMIT :count) "
        "INSERT INTO jobs (type, status, scheduled_at, completed_at) "
        f"SELECT 'type' || (n % 7), {status}, n, n FROM numbers",
        {"count": count},
    )
    connection.close()
    return path


def cost(folder: Path, status: str, count: int, which: Filter, before: int | None = None) -> tuple[int, Page]:
    path = filled(folder, status, count)
    operations = SqliteEngine(f"sqlite:///{path}").operations()
    pages: list[Page] = []
    used = steps(operations._connection.raw, lambda: pages.append(operations.jobs.page(which, before=before, limit=50)))
    operations.close()
    return used, pages[0]


@pytest.mark.parametrize("which", [FAILED, Filter(FAILED.statuses, ("type3",))], ids=["failed", "failed of a type"])
@pytest.mark.parametrize("status", TABLES.values(), ids=list(TABLES))
def test_what_went_wrong_is_listed_at_the_same_cost_among_ten_times_as_many_jobs(
    folder: Path, status: str, which: Filter
) -> None:
    small, page = cost(folder, status, SMALL, which)
    large, same = cost(folder, status, LARGE, which)

    assert len(page.jobs) == len(same.jobs) >= 10
    assert large <= small * 1.5, (small, large)


def test_so_is_what_runs_and_the_latest_of_all(folder: Path) -> None:
    running = "CASE WHEN n <= 20 THEN 'running' ELSE 'pending' END"
    for which in (Filter((Status.RUNNING,)), Filter()):
        small, page = cost(folder, running, SMALL, which)
        large, same = cost(folder, running, LARGE, which)

        assert len(page.jobs) == len(same.jobs) >= 20
        assert large <= small * 1.5, (small, large)


def test_a_page_deep_in_the_list_costs_no_more_than_the_first(folder: Path) -> None:
    status = TABLES["most have failed"]
    first, _ = cost(folder, status, LARGE, FAILED)
    deep, page = cost(folder, status, LARGE, FAILED, before=LARGE // 2)

    assert len(page.jobs) == 50
    assert deep <= first * 1.5, (first, deep)


def test_a_look_that_is_cut_short_loses_no_job(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(folder, "CASE WHEN n % 4999 = 0 THEN 'cancelled' ELSE 'done' END", LARGE)
    monkeypatch.setattr(jobs, "PATIENCE", 0.0)
    operations = SqliteEngine(f"sqlite:///{path}").operations()
    found: list[int] = []
    lengths = []
    before = None
    while True:
        page = operations.jobs.page(Filter((Status.CANCELLED,)), before=before, limit=50)
        found += [job.id for job in page.jobs]
        lengths.append(len(page.jobs))
        before = page.next
        if before is None:
            break
    operations.close()

    assert found == list(range(LARGE // 4999 * 4999, 0, -4999))
    assert 0 in lengths  # an empty page may have a next one
