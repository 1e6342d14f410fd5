"""Runs are kept in order although other programs change and delete jobs as they like."""

from __future__ import annotations

import sqlite3

from supervisor.domain.job import Status
from supervisor.domain.settlement import Usage, done, failed
from tests.store.kit import BROKEN, NOW, POLICY, T0, Desk

BESIDE = {"job_batch_limits": "most", "job_second_chances": "used"}
USED = Usage(NOW - 2, 1.5, 0.25, 64 << 20, "tagging\n")


def rows(foreign: sqlite3.Connection) -> list[tuple[int, str]]:
    return foreign.execute("SELECT job_id, outcome FROM job_runs ORDER BY job_id, token").fetchall()


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


def test_a_payload_with_a_nul_comes_through_to_the_worker(desk: Desk) -> None:
    desk.put(payload="\x00")

    assert desk.one().payload == "\x00"
