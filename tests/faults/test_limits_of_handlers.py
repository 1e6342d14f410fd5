"""A handler that lowers its process's limits, or meets them while its outcome is written: charged to it alone."""

from __future__ import annotations

import os

import pytest

from supervisor import Status
from tests.site_under_test import MakeSite, wait_for

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nmax_crashes = 2\nretry = { max_attempts = 1 }\n'
HANDLERS = """
import ctypes, os, resource
from ledger import record

class Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]

def hard(which, value):
    '''Lowered for good: without the capability nobody can raise it again.'''
    data = (ctypes.c_uint32 * 6)()
    assert ctypes.CDLL(None).capset(ctypes.byref(Header(0x20080522, 0)), ctypes.byref(data)) == 0
    resource.setrlimit(which, (value, value))

def soft(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))

def used():
    return int(open("/proc/self/statm").read().split()[0]) * 4096

LIMITS = {
    "file size": lambda: soft(resource.RLIMIT_FSIZE, 0),
    "memory": lambda: soft(resource.RLIMIT_AS, used() + (1 << 20)),
    "memory for good": lambda: hard(resource.RLIMIT_AS, used()),
    "user": lambda: os.setresuid(65534, 65534, 65534),
}

def work(payload, ctx):
    record("start", ctx)
    record("end", ctx)
    if "limit" in payload:
        LIMITS[payload["limit"]]()
    return {"pid": os.getpid(), "text": "x" * payload.get("bytes", 0)}
"""


@pytest.mark.sqlite
@pytest.mark.fault(52)
@pytest.mark.parametrize("limit", ["file size", "memory", "memory for good", "user"])
def test_a_lowered_limit_costs_only_the_job_that_did_it(make_site: MakeSite, limit: str) -> None:
    if limit == "user" and os.geteuid() != 0:
        pytest.skip("only root can")
    site = make_site(POOL, HANDLERS)
    before = site.queue.enqueue_many("work", [{}] * 5)
    job = site.queue.enqueue("work", {"limit": limit, "bytes": 200_000})
    behind = site.queue.enqueue_many("work", [{}] * 20)
    site.start()
    for each in [*before, *behind]:
        assert site.done(each, patience=30).crashes == 0
    wait_for(lambda: site.job(job).status not in (Status.PENDING, Status.RUNNING), "its end")
