"""Jobs that ruin their worker's process and return: it dies before it can commit, or right after."""

from __future__ import annotations

import time

import pytest

from supervisor import Status
from tests.site_under_test import MakeSite

JOBS = """
import json, os, time
from ledger import record

def mixed(payload, ctx):
    record("start", ctx)
    how = payload.get("how")
    if how == "close":
        os.closerange(3, 4096)
    elif how == "later":
        import threading
        threading.Timer(0.0005, os._exit, (3,)).start()
    record("end", ctx) if how != "close" else None
"""
CONFIG = """
[pools.mixed]
handler = "jobs:mixed"
types = ["bad", "good"]
workers = 1
max_crashes = 3
prefetch = {prefetch}
retry = {{ base = "100ms", jitter = 0 }}
"""


@pytest.mark.fault(45)
@pytest.mark.parametrize("prefetch", ['"auto"', "1"])
def test_a_job_that_closes_all_descriptors_is_quarantined_and_fifty_others_are_done(
    make_site: MakeSite, prefetch: str
) -> None:
    site = make_site(CONFIG.format(prefetch=prefetch), JOBS)
    site.start()
    guilty = site.queue.enqueue("bad", {"how": "close"})
    began = time.monotonic()
    good = site.queue.enqueue_many("good", [{}] * 50)
    for job in good:
        assert site.done(job).crashes <= 1
    assert time.monotonic() - began < 15  # 5 on a machine that does nothing else
    ended = site.queue.wait(guilty, timeout=30)
    assert (ended.status, ended.crashes) == (Status.QUARANTINED, 3)
    assert len(site.runs("start", guilty)) <= 6
