"""Somebody keeps a write transaction on the database open: ours is ended and charged, a stranger is named."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess

import pytest

from supervisor import Status
from supervisor.domain.errors import StoreBusy
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, wait_for
from tests.stopwatch import Stopwatch

HANDLERS = """
import asyncio, os, sqlite3, subprocess, sys, threading, time
from ledger import record

kept = []
HOLD = '''
import sqlite3, sys, time
connection = sqlite3.connect("DATABASE", timeout=30, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(300)
'''

def hold():
    connection = sqlite3.connect("DATABASE", timeout=30, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("CREATE TABLE IF NOT EXISTS own (x)")
    connection.execute("INSERT INTO own VALUES (1)")
    kept.append(connection)

def forgets(how, ctx):
    record("start", ctx)
    if how == "in a child":
        child = subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE)
        child.stdout.readline()
    elif how not in ("lasts", "innocent"):
        hold()
    if how in ("lasts", "holds and lasts"):
        ctx.extend("60s")
        time.sleep(8)
    if how == "beyond its time":
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
    if how == "within its time":
        while not os.path.exists("named"):
            time.sleep(0.02)
        kept.pop().commit()
    record("end", ctx)

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)

def together(how, ctx):
    record("start", ctx)
    if how == "forgets":
        hold()
    elif how == "enqueues":
        while not kept and not os.path.exists("died"):
            time.sleep(0.02)
        from supervisor import Queue
        with Queue("sqlite:///DATABASE") as queue:
            queue.enqueue("work")
    elif how == "long":
        while not os.path.exists("died"):
            time.sleep(0.02)
    elif how == "within its time":
        hold()
        while not os.path.exists("named"):
            time.sleep(0.02)
        kept.pop().commit()
    record("end", ctx)

async def on_loop(how, ctx):
    if how in ("long", "enqueues"):
        await asyncio.to_thread(together, how, ctx)
    else:
        together(how, ctx)
"""
POOLS = """
[defaults]
workers = 1
prefetch = 1
max_crashes = 1
[pools.forgets]
handler = "jobs:forgets"
timeout = "60s"
[pools.work]
handler = "jobs:work"
"""


def site_of(make_site: MakeSite, pools: str = POOLS) -> Site:
    site = make_site(pools, HANDLERS)
    text = (site.folder / "jobs.py").read_text()
    (site.folder / "jobs.py").write_text(text.replace("DATABASE", str(site.database)))
    return site


def trouble(site: Site, supervisor: subprocess.Popen[bytes]) -> str:
    return str(site.supervisor_status(supervisor)["trouble"])


@pytest.mark.sqlite
@pytest.mark.fault(48)
@pytest.mark.parametrize("how", ["in the worker", "in a child"])
def test_a_forgotten_commit_ends_its_worker_and_is_charged_and_writers_go_on(make_site: MakeSite, how: str) -> None:
    site = site_of(make_site)
    supervisor = site.start()
    poison = site.queue.enqueue("forgets", how)
    wait_for(lambda: site.runs("end", poison), "the run to be over")
    watch = Stopwatch()
    job = site.done(site.queue.enqueue("work"), patience=30)
    assert watch.seconds() < 10
    assert job.attempts == 1
    died = wait_for(lambda: site.event("worker_died", pool="forgets"), "its death")
    assert died["reason"] == "held_database"
    if how == "in the worker":  # it could not even settle the run
        site.verdict(quarantined=[poison], hit=[poison])
        assert "was left open" in str(site.job(poison).last_error)
    assert supervisor.poll() is None


TOGETHER = """
[pools.together]
handler = "jobs:KIND"
workers = 1
concurrency = 10
max_crashes = 1
timeout = "120s"
retry = { max_attempts = 1 }
[pools.work]
handler = "jobs:work"
workers = 1
"""


@pytest.mark.sqlite
@pytest.mark.fault(48)
@pytest.mark.parametrize(
    ("kind", "beside"),
    sampled([("together", "long"), ("on_loop", "enqueues"), ("together", "enqueues"), ("on_loop", "long")], quick=2),
)
def test_of_jobs_that_run_together_only_the_one_that_forgot_its_commit_is_charged(
    make_site: MakeSite, kind: str, beside: str
) -> None:
    site = site_of(make_site, TOGETHER.replace("KIND", kind))
    others = site.queue.enqueue_many("together", [beside] * 3)
    site.start()
    wait_for(lambda: all(site.runs("start", job) for job in others), "the others to run")
    poison = site.queue.enqueue("together", "forgets")
    wait_for(lambda: site.runs("end", poison), "the run to be over")
    wait_for(lambda: site.event("worker_died", pool="together"), "the end of its worker, whose other jobs continue")
    (site.folder / "died").touch()
    ended = None
    while ended is None:
        with contextlib.suppress(StoreBusy):
            ended = site.queue.wait(poison, timeout=60)
    assert ended.status is Status.QUARANTINED
    enqueued = [job for (job,) in site.rows("SELECT id FROM jobs WHERE type = 'work'")]
    site.verdict(quarantined=[poison], hit=[poison, *others], others=enqueued)
    assert [(job.attempts, job.crashes) for job in map(site.job, others)] == [(1, 0)] * 3
    last = site.told("worker_died", job=poison)
    died = [event for event in site.events() if event.get("event") == "worker_died"]
    assert {event["reason"] for event in died} == {"held_database"}
    first = died[0]
    assert "it is not known which" in first["detail"]
    assert first.get("job") is None
    assert died[-1] == last


@pytest.mark.sqlite
@pytest.mark.fault(48)
def test_a_job_in_a_transaction_beside_others_that_continue_is_named_and_harms_nobody(make_site: MakeSite) -> None:
    site = site_of(make_site, TOGETHER.replace("KIND", "together"))
    supervisor = site.start()
    jobs = site.queue.enqueue_many("together", ["long", "long", "within its time"])
    wait_for(lambda: "one of 3 jobs" in trouble(site, supervisor), "its worker to be named")
    assert "in worker together-1" in trouble(site, supervisor)
    (site.folder / "named").touch()
    wait_for(lambda: not trouble(site, supervisor), "it to be over")
    (site.folder / "died").touch()
    for job in jobs:
        site.done(job)
    site.verdict()
    assert not site.event("worker_died")


@pytest.mark.sqlite
@pytest.mark.fault(48)
@pytest.mark.parametrize(("first", "second"), [("forgets", "lasts"), ("innocent", "holds and lasts")])
def test_of_two_runs_in_one_hand_only_the_one_that_holds_the_lock_is_charged(
    make_site: MakeSite, first: str, second: str
) -> None:
    site = site_of(make_site, POOLS.replace("prefetch = 1", "prefetch = 8").replace('"60s"', '"500ms"'))
    jobs = [site.queue.enqueue("forgets", how, delay="1s") for how in ("innocent", first, second)]
    poison = jobs.pop(1 if first == "forgets" else 2)
    site.start()
    assert [site.done(job, patience=40).crashes for job in jobs] == [0, 0]
    site.verdict(quarantined=[poison], hit=[poison, *jobs])


@pytest.mark.fault(48)
def test_a_transaction_of_a_handler_that_never_ends_lasts_as_long_as_its_time_limit(make_site: MakeSite) -> None:
    site = site_of(
        make_site, POOLS.replace('"60s"', '"1s"').replace("max_crashes", "retry = { max_attempts = 1 }\nmax_crashes")
    )
    site.start()
    poison = site.queue.enqueue("forgets", "beyond its time")
    site.running_pid(poison)
    watch = Stopwatch()
    job = None
    while job is None:
        with contextlib.suppress(StoreBusy):
            job = site.queue.enqueue("work")
    site.done(job, patience=30)
    assert watch.seconds() < 1 + 10
    wait_for(lambda: site.job(poison).status is Status.FAILED, "the attempt to fail")
    assert "time limit" in str(site.job(poison).last_error)


@pytest.mark.sqlite
@pytest.mark.fault(48)
def test_a_long_transaction_within_the_time_limit_is_named_and_harms_nobody(make_site: MakeSite) -> None:
    site = site_of(make_site)
    supervisor = site.start()
    job = site.queue.enqueue("forgets", "within its time")
    wait_for(lambda: f"job {job} in worker forgets-1" in trouble(site, supervisor), "it to be named")
    (site.folder / "named").touch()
    site.done(job)
    wait_for(lambda: not trouble(site, supervisor), "it to be over")
    site.verdict()
    assert not site.event("worker_died")
    assert site.told("database_held")


@pytest.mark.sqlite
@pytest.mark.fault(48)
def test_a_stranger_with_the_write_lock_is_named_in_status_log_and_doctor(make_site: MakeSite) -> None:
    site = site_of(make_site)
    supervisor = site.start()
    with contextlib.closing(sqlite3.connect(site.database, timeout=30, isolation_level=None)) as stranger:
        stranger.execute("BEGIN IMMEDIATE")
        who = f"another program (pid {os.getpid()}: "
        wait_for(lambda: who in trouble(site, supervisor), "it to be named")
        doctor = site.command("doctor", code=None)
        told = " ".join(doctor.stdout.split())
        assert f"process {os.getpid()}" in told
        assert "holds the write lock" in told
        stranger.execute("COMMIT")
    wait_for(lambda: not trouble(site, supervisor), "it to be over")
    site.told("database_held")
    found = [event for event in site.events() if event.get("event") == "database_held"]
    assert [event["pid"] for event in found] == [os.getpid()]
    assert supervisor.poll() is None
