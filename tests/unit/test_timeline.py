"""The timeline of a job says how each of its runs ended."""

from __future__ import annotations

from supervisor.domain.job import Attempt, Job, Run, Status
from supervisor.ops.job_details import steps, trials

ROW = dict.fromkeys(Job.__slots__) | {"id": 1, "type": "tag", "status": Status.PENDING, "attempts": 1}
PENDING = Job(**(ROW | {"created_at": 10.0, "scheduled_at": 10.0, "started_at": 14.0}))
DONE = Job(**(ROW | {"status": Status.DONE, "created_at": 10.0, "scheduled_at": 10.0, "completed_at": 15.0}))


def ran(outcome: str, started_at: float, duration: float) -> Run:
    return Run(1, 1, 1, outcome, "tag-1", started_at, duration, None, None, None)


def test_each_end_is_told_that_of_a_released_run_too() -> None:
    error = Attempt(1, 1, "exception", "no", None, None, None, None, None, "tag-1", 1.0, 15.0)
    tried = trials([ran("exception", 14.0, 1.0), ran("released", 11.0, 2.0)], [error])
    assert [(step.at, step.what) for step in steps(PENDING, tried)] == [
        (10.0, "created"),
        (11.0, "attempt 1 started in tag-1"),
        (13.0, "attempt 1 ended: released"),
        (14.0, "run 2 (attempt 1) started in tag-1"),
        (15.0, "run 2 (attempt 1) ended: exception"),
    ]


def test_a_run_after_a_crash_is_told_from_the_one_before() -> None:
    third = Job(**(ROW | {"status": Status.RUNNING, "created_at": 10.0, "scheduled_at": 10.0, "started_at": 20.0}))
    told = [step.what for step in steps(third, trials([ran("crash", 14.0, 1.0), ran("crash", 11.0, 2.0)], []))]
    assert told[1::2] == [
        "attempt 1 started in tag-1",
        "run 2 (attempt 1) started in tag-1",
        "run 3 (attempt 1) started",
    ]


def test_the_end_of_a_run_that_ends_the_job_is_told_once() -> None:
    told = [step.what for step in steps(DONE, trials([ran("done", 14.0, 1.0)], []))]
    assert told == ["created", "attempt 1 started in tag-1", "done"]
