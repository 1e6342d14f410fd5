"""Runs are kept in order although other programs change and delete jobs as they like."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from supervisor.domain.job import NewJob, Status
from supervisor.domain.settlement import Usage, done, failed
from supervisor.engine import open_engine
from supervisor.store.base import Engine
from tests.store.kit import BROKEN, NOW, POLICY, T0, Desk

BESIDE = {"job_batch_limits": "most", "job_second_chances": "used"}
USED = Usage(NOW - 2, 1.5, 0.25, 64 << 20, "tagging\n")


def rows(foreign: sqlite3.Connection) -> list[tuple[int, str]]:
    return foreign.execute("SELECT job_id, outcome FROM job_runs ORDER BY job_id, token").fetchall()


def test_a_child_that_the_database_refuses_fails_the_run(desk: Desk, foreign: sqlite3.Connection) -> None:
    foreign.execute("CREATE TRIGGER no BEFORE INSERT ON jobs WHEN NEW.type = 'no' BEGIN SELECT RAISE(ABORT, 'no'); END")
    job_id = desk.put()
    desk.settle(done(desk.one(), None, children=(NewJob("no", "{}"),), usage=USED))

    assert rows(foreign) == [(job_id, "children")]


def test_a_token_that_another_program_has_lowered_stops_nobody(desk: Desk, foreign: sqlite3.Connection) -> None:
    job_id = desk.put()
    desk.settle(failed(desk.one(), BROKEN, POLICY, chance=0.5))
    foreign.execute("UPDATE jobs SET claim_token = 0")
    desk.settle(done(desk.one(now=NOW + 100), None, usage=USED))

    assert rows(foreign) == [(job_id, "done")]


def test_runs_of_jobs_that_another_program_has_deleted_are_pruned_in_time(
    desk: Desk, foreign: sqlite3.Connection
) -> None:
    jobs = [desk.put() for _ in range(5)]
    for table, column in BESIDE.items():
        foreign.executemany(f"INSERT INTO {table} (job_id, {column}) VALUES (?, 1)", [(job,) for job in jobs])
    desk.settle(*(done(claim, None, usage=USED) for claim in desk.claim(want=5)))
    foreign.execute(f"DELETE FROM jobs WHERE id IN ({jobs[0]}, {jobs[2]})")  # its foreign keys are off
    assert len(rows(foreign)) == 5
    reached = 0
    for _ in range(3):
        _, reached = desk.maintenance.finished.prune(reached, 2, T0, T0)

    assert rows(foreign) == [(jobs[1], "done"), (jobs[3], "done"), (jobs[4], "done")]
    for table in BESIDE:
        left = foreign.execute(f"SELECT job_id FROM {table} ORDER BY job_id").fetchall()
        assert left == [(jobs[1],), (jobs[3],), (jobs[4],)], table
    assert desk.status(jobs[1]) is Status.DONE


def test_a_backup_holds_them(desk: Desk, engine: Engine, tmp_path: Path) -> None:
    job_id = desk.put()
    desk.settle(done(desk.one(), None, usage=USED))
    (tmp_path / "copy").mkdir()
    engine.database.back_up(tmp_path / "copy" / "jobs.db")

    with contextlib.closing(open_engine(f"sqlite:///{tmp_path}/copy/jobs.db").operations()) as operations:
        assert len(operations.jobs.runs(job_id)) == 1
        assert operations.jobs.runs(job_id) == desk.operations.jobs.runs(job_id)


def test_a_payload_with_a_nul_comes_through_to_the_worker(desk: Desk) -> None:
    desk.put(payload="\x00")

    assert desk.one().payload == "\x00"
