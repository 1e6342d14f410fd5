"""An error in a worker's heartbeat thread: it is said, the thread goes on, and no settlement is lost with it."""

from __future__ import annotations

import pytest

from tests.site_under_test import MakeSite, wait_for

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nheartbeat_timeout = "1s"\nprefetch = 64\n'
HANDLERS = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    if payload.get("breaks"):
        import sys
        on_server = sys.modules.get("supervisor.store.postgres.claims")
        from supervisor.store.sqlite.claims import SqliteClaims
        Claims = on_server.PostgresClaims if on_server else SqliteClaims
        # What the heartbeat thread uses when it hands back the jobs behind this one.
        exchange, main = Claims.settle_and_claim, __import__("threading").main_thread()
        def broken(self, *arguments, **options):
            if __import__("threading").current_thread() is not main:
                raise ZeroDivisionError("in the heartbeat thread")
            return exchange(self, *arguments, **options)
        Claims.settle_and_claim = broken
    time.sleep(payload.get("seconds", 0))
    record("end", ctx)
    return os.getpid()
"""


@pytest.mark.fault(69)
def test_an_error_in_the_heartbeat_thread_is_logged_and_loses_nothing(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    jobs = site.queue.enqueue_many("work", [{}] * 20 + [{"breaks": True, "seconds": 2.5}] + [{}] * 20)
    site.start()
    site.verdict()
    assert len({site.job(job).result for job in jobs}) == 1  # nobody took the worker for stuck
    assert wait_for(lambda: site.event("heartbeat_failed"), "the log to say so")
    assert len([event for event in site.events() if event.get("event") == "heartbeat_failed"]) == 1


@pytest.mark.fault(69)
def test_what_the_heartbeat_thread_holds_when_its_worker_leaves_is_committed_first(make_site: MakeSite) -> None:
    site = make_site(POOL)
    supervisor = site.start()
    jobs = site.queue.enqueue_many("work", [{"seconds": 0.001}] * 20 + [{"seconds": 0.12}] + [{}] * 20)
    wait_for(lambda: site.runs("start", jobs[20]), "the slow one")
    assert site.stop(supervisor) == 0
    started = [job for job in jobs if site.runs("start", job)]
    site.verdict(pending=[job for job in jobs if job not in started])


SLOW = """
import os, threading, time
from ledger import record
import supervisor.store.sqlite.claims as claims

exchange = claims.SqliteClaims.settle_and_claim

def slowly(self, owner, settlements, *arguments, **options):
    if threading.current_thread() is not threading.main_thread():
        time.sleep(0.1 * len(settlements))
    return exchange(self, owner, settlements, *arguments, **options)

claims.SqliteClaims.settle_and_claim = slowly

def work(payload, ctx):
    record("start", ctx)
    time.sleep(payload.get("seconds", 0))
    record("end", ctx)
    return os.getpid()
"""


@pytest.mark.fault(69)
def test_a_worker_that_settles_slowly_beside_a_job_is_not_taken_for_stuck(make_site: MakeSite) -> None:
    site = make_site(POOL.replace('"1s"', '"2s"'), SLOW)
    jobs = site.queue.enqueue_many("work", [{}] * 30 + [{"seconds": 7}] + [{}] * 33)
    site.start()
    site.verdict()
    assert len({site.job(job).result for job in jobs}) == 1
    assert not site.event("worker_died")
