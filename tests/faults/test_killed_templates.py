"""Jobs that kill the template of their worker, and with it all their neighbours."""

from __future__ import annotations

import pytest

from supervisor import Status
from tests.site_under_test import MakeSite, wait_for

JOBS = """
import os, signal, time
from ledger import record

def poison(payload, ctx):
    record("start", ctx)
    os.kill(os.getppid(), getattr(signal, payload.get("signal", "SIGKILL")))
    time.sleep(60)

def work(payload, ctx):
    record("start", ctx)
    time.sleep(payload.get("seconds", 0.05))
    record("end", ctx)
"""
CONFIG = """
[defaults]
retry = { base = "100ms", jitter = 0 }
max_crashes = 3
[pools.mixed]
handler = "jobs:mixed"
types = ["poison", "work"]
workers = 3
[pools.other]
handler = "jobs:work"
workers = 1
"""
MIXED = (
    JOBS
    + """
def mixed(payload, ctx):
    return (poison if payload.get("poison") else work)(payload, ctx)
"""
)


@pytest.mark.fault(46)
def test_a_job_that_kills_its_template_is_found_and_its_neighbours_run_three_times_at_most(make_site: MakeSite) -> None:
    site = make_site(CONFIG, MIXED)
    site.start()
    guilty = site.queue.enqueue("poison", {"poison": True})
    innocent = [site.queue.enqueue("work", {"seconds": 0.2}) for _ in range(8)]
    others = [site.queue.enqueue("other", {"seconds": 0.2}) for _ in range(4)]
    ended = site.queue.wait(guilty, timeout=30)
    assert (ended.status, ended.crashes) == (Status.QUARANTINED, 3)
    for job in (*innocent, *others):
        assert site.done(job).crashes == 0
        assert len(site.runs("start", job)) <= 3
    assert len(site.runs("start", guilty)) <= 6
    [(message,)] = site.rows("SELECT DISTINCT message FROM job_errors WHERE job_id = ?", guilty)
    assert "while only this job was running" in message
    wait_for(lambda: len(site.workers("mixed")) == 3, "all workers again")
