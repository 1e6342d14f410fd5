"""A handler leaves a transaction on the server open in which it holds what its own worker waits for."""

from __future__ import annotations

import json

import psycopg
import pytest

from supervisor import Status
from tests.site_under_test import MakeSite, wait_for

pytestmark = pytest.mark.postgres

HANDLERS = """
import subprocess, sys, threading, time
import psycopg
from ledger import record

kept = []

def hold(url, statement, job):
    kept.append(psycopg.connect(url))
    kept[-1].execute(statement.replace("OWN", str(job)))

CHILD = "import sys, time, jobs; jobs.hold(*sys.argv[1:]); print(flush=True); time.sleep(600)"

def work(payload, ctx):
    record("start", ctx)
    statement = payload.get("leaves")
    if statement and (payload.get("always") or not kept and ctx.token == 1):
        arguments = payload["url"], statement, ctx.job_id
        how = payload.get("how")
        if how == "a thread":
            threading.Thread(target=lambda: (time.sleep(0.05), hold(*arguments))).start()
        elif how == "a process":
            child = subprocess.Popen([sys.executable, "-c", CHILD, *map(str, arguments)], stdout=subprocess.PIPE)
            child.stdout.readline()
        else:
            hold(*arguments)
    end = time.monotonic() + payload.get("seconds", 0)
    while time.monotonic() < end:
        time.sleep(0.01)
    record("end", ctx)
"""
POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
OWN_ROW = "SELECT 1 FROM jobs WHERE id = OWN FOR UPDATE"
LEFT_OPEN = "left a database transaction open"


@pytest.mark.fault(96)
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(
    "statement",
    [
        OWN_ROW,
        "UPDATE jobs SET progress = 0.5 WHERE id = OWN",
        "LOCK TABLE jobs IN SHARE MODE",
        "LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE",
        "SELECT pg_advisory_lock(hashtextextended(locked_by, 7308604897285366887)) FROM jobs WHERE id = OWN",
    ],
)
def test_a_worker_that_keeps_itself_waiting_is_replaced_and_its_job_runs_again(
    make_site: MakeSite, statement: str, concurrency: int
) -> None:
    site = make_site(POOL + f"concurrency = {concurrency}\n", HANDLERS)
    site.start()
    job = site.queue.enqueue("work", {"leaves": statement, "url": site.url})
    wait_for(lambda: site.event("worker_ruined"), "the worker to notice", 30)
    assert LEFT_OPEN in str(site.event("worker_ruined"))
    other = site.queue.enqueue("work")
    site.done(other)
    site.done(job)
    assert site.job(job).crashes == 0  # an earlier job might have been the cause
    site.verdict(hit=[job])


@pytest.mark.fault(96)
@pytest.mark.parametrize("how", ["a thread", "a process"])
def test_so_is_one_whose_thread_or_child_process_holds_it(make_site: MakeSite, how: str) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    job = site.queue.enqueue("work", {"leaves": OWN_ROW, "url": site.url, "how": how, "seconds": 0.3})
    site.done(job)
    assert site.event("worker_ruined")
    site.verdict(hit=[job])


@pytest.mark.fault(96)
def test_a_job_that_does_so_again_and_again_is_quarantined_with_the_reason(make_site: MakeSite) -> None:
    site = make_site(POOL + "max_crashes = 1\n", HANDLERS)
    site.start()
    job = site.queue.enqueue("work", {"leaves": OWN_ROW, "url": site.url, "always": True})
    wait_for(lambda: site.job(job).status is Status.QUARANTINED, "the second death", 60)
    assert LEFT_OPEN in (site.job(job).last_error or "")
    site.done(site.queue.enqueue("work"))
    site.verdict(hit=[job], quarantined=[job])


@pytest.mark.fault(96)
def test_who_holds_what_a_worker_waits_for_is_named_and_a_stranger_costs_no_worker(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    job = site.queue.enqueue("work", {"seconds": 1})
    site.running_pid(job)
    with psycopg.connect(site.url, application_name="a stranger") as stranger:
        stranger.execute("SELECT 1 FROM jobs WHERE id = %s FOR UPDATE", (job,))
        named = f"session {stranger.info.backend_pid} (a stranger, user "

        def told() -> bool:
            return named in json.dumps(json.loads(site.command("status", "--json", code=None).stdout))

        wait_for(told, "status to name it", 30)
    site.done(job)
    assert not site.event("worker_died")
    site.verdict()
