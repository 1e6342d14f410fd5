"""What a handler reports of its progress is in the table while it runs, and costs a job that reports none nothing."""

from __future__ import annotations

import sqlite3
import sys
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from supervisor import Job, Status
from supervisor.worker.heartbeat import EVERY
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]

HANDLERS = """
import os, time

def wait(path):
    while not os.path.exists(path):
        time.sleep(0.005)

def steps(payload, ctx):
    if payload.get("fails") and ctx.attempt == 1:
        ctx.progress(0.5, "about to fail")
        wait(payload["until"])
        raise ValueError("no")
    for fraction, text in payload.get("steps", []):
        ctx.progress(fraction, text)
    end = time.monotonic() + payload.get("storm", 0)
    while time.monotonic() < end:
        ctx.progress(0.75, "again and again")
        time.sleep(0.001)  # others need the CPU, too
    if "until" in payload:
        wait(payload["until"])

class Together:
    def handle_batch(self, payloads, ctx):
        ctx.progress(0.25, "all of them")
        wait(payloads[0]["until"])
        return [None] * len(payloads)
"""
POOL = '[pools.steps]\nhandler = "jobs:steps"\nworkers = 1\nretry = { max_attempts = 2, base = "1ms" }\n'


def reached(site: Site, job: int, fraction: float, text: str) -> Job:
    def look() -> Job | None:
        found = site.queue.job(job)
        return found if (found.progress, found.progress_text) == (fraction, text) else None

    return wait_for(look, f"{fraction} {text} in the table")


def writes(site: Site, job: int) -> int:
    return int(site.rows("SELECT count(*) FROM progress_written WHERE job = ?", job)[0][0])


def count_writes(site: Site) -> None:
    with closing(sqlite3.connect(site.database)) as con:
        con.execute("CREATE TABLE progress_written (job INTEGER)")
        con.execute(
            "CREATE TRIGGER progress_written AFTER UPDATE OF progress ON jobs WHEN NEW.status = 'running' "
            "BEGIN INSERT INTO progress_written VALUES (NEW.id); END"
        )
        con.commit()


def test_progress_and_text_are_in_the_table_while_the_job_runs_and_a_done_job_has_come_all_the_way(
    make_site: MakeSite,
) -> None:
    site = make_site(POOL, HANDLERS)
    go = site.folder / "go"
    site.start()
    # The last of many is what counts, though nothing more is reported after it.
    steps = [[n / 1000, f"step {n}"] for n in range(250)] + [[0.25, "a quarter: ¼"]]
    job = site.queue.enqueue("steps", {"steps": steps, "until": str(go)})
    seen = reached(site, job, 0.25, "a quarter: ¼")
    assert seen.status is Status.RUNNING
    go.touch()
    ended = site.done(job)
    assert (ended.progress, ended.progress_text) == (1.0, None)


def test_a_job_that_reports_nothing_writes_nothing_and_one_that_reports_all_the_time_writes_now_and_then(
    make_site: MakeSite,
) -> None:
    site = make_site(POOL.replace("workers = 1", "workers = 2"), HANDLERS)
    count_writes(site)
    site.start()
    [silent], go = site.held("steps")
    wait_for(lambda: site.queue.job(silent).status is Status.RUNNING, "the silent job")
    began = time.monotonic()
    loud = site.queue.enqueue("steps", {"storm": EVERY * 5})
    site.done(loud)
    assert 1 <= writes(site, loud) <= (time.monotonic() - began) / EVERY
    go.touch()
    assert site.done(silent).progress is None
    assert writes(site, silent) == 0
    brief = site.done(site.queue.enqueue("steps", {"steps": [[0.5, "half"]]}))
    assert brief.progress == 1.0
    assert brief.completed_at is not None
    assert brief.started_at is not None
    assert writes(site, brief.id) == 0 or brief.completed_at - brief.started_at > EVERY


def test_a_failed_attempt_leaves_no_progress_for_the_next_one(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    fail, go = site.folder / "fail", site.folder / "go"
    job = site.queue.enqueue("steps", {"fails": True, "until": str(fail)})
    reached(site, job, 0.5, "about to fail")
    site.queue.enqueue("steps", {"until": str(go)}, priority=9)  # the only worker has something else to do then
    fail.touch()
    wait_for(lambda: site.queue.job(job).status is Status.PENDING, "the failure")
    waiting = site.queue.job(job)
    assert (waiting.progress, waiting.progress_text) == (None, None)
    go.touch()
    assert site.done(job).progress is None


def test_every_job_of_a_batch_shows_the_progress_of_the_batch(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.together]\nhandler = "jobs:Together"\nworkers = 1\nbatch_size = 3\nbatch_wait = "5s"\n', HANDLERS
    )
    jobs, go = site.held("together", 3)
    site.start()
    for job in jobs:
        reached(site, job, 0.25, "all of them")
    go.touch()
    for job in jobs:
        assert site.done(job).progress == 1.0


def test_a_database_that_refuses_progress_costs_the_job_nothing(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    with closing(sqlite3.connect(site.database)) as con:
        con.execute(
            "CREATE TRIGGER no_progress BEFORE UPDATE OF progress_text ON jobs WHEN NEW.progress_text IS NOT NULL "
            "BEGIN SELECT RAISE(ABORT, 'not here'); END"
        )
    site.start()
    ended = site.done(site.queue.enqueue("steps", {"storm": EVERY * 3}))
    assert (ended.progress, ended.crashes, ended.attempts) == (1.0, 0, 1)


def test_progress_is_written_as_soon_as_the_database_can_be_written_again(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    go = site.folder / "go"
    site.start(env=site.failpoints("worker:show_progress.before=fail:busy*2"))
    job = site.queue.enqueue("steps", {"steps": [[0.5, "half"]], "until": str(go)})
    reached(site, job, 0.5, "half")
    go.touch()
    assert site.done(job).crashes == 0


def test_the_progress_of_a_program_is_in_the_table_too_and_writing_it_changes_nothing_in_its_worker(
    make_site: MakeSite,
) -> None:
    site = make_site(f'[pools.steps]\ncommand = ["{sys.executable}", "program.py"]\nworkers = 1\n', HANDLERS)
    (site.folder / "program.py").write_text(
        "import job_handler, jobs\njob_handler.serve(lambda payload, ctx: jobs.steps(payload, ctx))\n"
    )
    go = site.folder / "go"
    site.start()
    worker = wait_for(lambda: site.workers("steps"), "the worker")[0].pid
    job = site.queue.enqueue("steps", {"steps": [[0.5, "half"]], "until": str(go)})
    reached(site, job, 0.5, "half")
    go.touch()
    assert site.done(job).progress == 1.0
    site.done(site.queue.enqueue("steps", {}))
    assert [one.pid for one in site.workers("steps")] == [worker]


@pytest.mark.fault(2)
@pytest.mark.parametrize("when", [".before", "", ".committed"])
def test_a_worker_killed_while_it_writes_progress_has_its_job_run_again(make_site: MakeSite, when: str) -> None:
    site = make_site(POOL, HANDLERS)
    point = f"worker:show_progress{when}=kill"
    site.start(env=site.failpoints(point))
    ended = site.done(site.queue.enqueue("steps", {"storm": EVERY * 2}))
    site.hit(point)
    assert (ended.crashes, ended.attempts, ended.progress, ended.progress_text) == (1, 1, 1.0, None)
