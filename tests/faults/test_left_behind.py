"""What a job leaves behind ends or stops its worker while another job runs: that one runs again."""

from __future__ import annotations

import pytest

from supervisor import Status
from tests.site_under_test import MakeSite

HANDLERS = """
import os, signal, subprocess, threading, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    if "leaves" in payload:
        LEAVES[payload["leaves"]]()
    elif payload.get("dies"):
        os._exit(3)
    else:
        open("next", "w").close()
        time.sleep(payload.get("seconds", 0.6))
    record("end", ctx)
    return {"pid": os.getpid()}

def child(what):
    subprocess.Popen(["sh", "-c", f"until [ -e next ]; do sleep 0.01; done; {what} {os.getpid()}"])

def thread(what):
    threading.Thread(target=lambda: (wait_for_the_next_job(), what()), daemon=True).start()

def wait_for_the_next_job():
    while not os.path.exists("next"):
        time.sleep(0.01)

LEAVES = {
    "a child that kills": lambda: child("kill -9"),
    "a child that stops": lambda: child("kill -STOP"),
    "a thread that exits": lambda: thread(lambda: os._exit(3)),
    "a thread that faults": lambda: thread(lambda: signal.pthread_kill(threading.main_thread().ident, signal.SIGSEGV)),
    "a thread that waits": lambda: thread(lambda: time.sleep(60)),
    "a child that waits": lambda: subprocess.Popen(["sleep", "60"]),
}
"""
POOL = """
[pools.work]
handler = "jobs:work"
workers = 1
heartbeat_timeout = "2s"
retry = { base = "10ms", jitter = 0 }
"""
HARMFUL = ["a child that kills", "a child that stops", "a thread that exits", "a thread that faults"]


@pytest.mark.fault(15)
@pytest.mark.parametrize("what", HARMFUL)
def test_a_job_that_ends_with_what_another_one_has_left_behind_runs_again(make_site: MakeSite, what: str) -> None:
    site = make_site(POOL, HANDLERS)
    guilty = site.queue.enqueue("work", {"leaves": what})
    behind = site.queue.enqueue("work")
    site.start()
    assert site.done(behind).crashes == 1
    assert site.done(guilty).crashes == 0


@pytest.mark.fault(15)
@pytest.mark.parametrize("what", ["a thread that waits", "a child that waits"])
def test_what_is_left_behind_and_does_no_harm_stays_and_hides_no_crash(make_site: MakeSite, what: str) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    first = site.done(site.queue.enqueue("work", {"leaves": what})).result
    again = [site.done(site.queue.enqueue("work", {"seconds": 0})).result for _ in range(5)]
    assert again == [first] * 5
    deadly = site.queue.enqueue("work", {"dies": True})
    ended = site.queue.wait(deadly, timeout=30)
    assert (ended.status, ended.crashes) == (Status.QUARANTINED, 3)
    assert site.told("job_quarantined", job=deadly)
    assert len(site.runs("start", deadly)) == 3
