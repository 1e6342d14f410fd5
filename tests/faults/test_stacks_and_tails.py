"""What a worker writes to stderr at its end stands with the job that is charged."""

from __future__ import annotations

import psutil
import pytest

from supervisor import Status
from tests.samples import sampled
from tests.site_under_test import MakeSite, wait_for

HANDLERS = """
import os, subprocess, sys, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    words = payload.get("says", "said")
    if payload.get("by") == "system call":
        os.write(2, words.encode())
        time.sleep(0.002)
    elif payload.get("by") == "child":
        subprocess.run(["/bin/sh", "-c", f"printf {words} >&2"])
    elif words:
        print(words, file=sys.stderr, flush=True)
    if payload.get("ends"):
        os._exit(3)
    while payload.get("hangs"):
        try:
            time.sleep(60)
        except BaseException:
            if not payload.get("deaf"):
                raise
    record("end", ctx)
"""
POOL = """
[pools.work]
handler = "jobs:work"
workers = 1
timeout = "300ms"
max_crashes = 1
retry = { max_attempts = 1 }
"""
HEAD = "most recent call first"


@pytest.mark.fault(14)
@pytest.mark.parametrize("deaf", [True, False])
def test_a_job_at_its_time_limit_is_one_event_and_its_stack_is_kept(make_site: MakeSite, deaf: bool) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    job = site.queue.enqueue("work", {"hangs": True, "deaf": deaf})
    pid = site.running_pid(job)
    ended = site.queue.wait(job, timeout=20)
    assert (ended.status, ended.attempts, ended.crashes) == (Status.FAILED, 1, 0)
    assert not (deaf and psutil.pid_exists(pid))  # who hears nothing is killed
    [(kind, traceback, stderr)] = site.rows("SELECT kind, traceback, stderr FROM job_errors WHERE job_id = ?", job)
    assert kind == "timeout"
    assert HEAD in stderr if deaf else "in work" in traceback
    event = site.event("job_timed_out")
    assert event is not None
    assert (event["pool"], event["worker"], event["job"]) == ("work", "work-1", job)
    assert event["limit_seconds"] == 0.3
    site.done(site.queue.enqueue("work", {"says": "afterwards"}))
    assert site.log.read_text().count("job_timed_out") == 1
    site.verdict(failed=[job])


@pytest.mark.fault(37)
def test_the_tail_kept_for_a_crash_is_that_of_its_own_job(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    for number in range(3):
        site.done(site.queue.enqueue("work", {"says": f"other {number}"}))
    wait_for(lambda: "other 2" in site.log.read_text(), "what was said before to be read")
    job = site.queue.enqueue("work", {"says": "its own words", "ends": True})
    assert site.queue.wait(job, timeout=20).status is Status.QUARANTINED
    [(stderr,)] = site.rows("SELECT stderr FROM job_errors WHERE job_id = ?", job)
    assert stderr == "its own words\n"


BEFORE = [{"by": "print"}, {"by": "system call"}, {"by": "child"}, {"hangs": True, "deaf": True}]


@pytest.mark.fault(37)
@pytest.mark.parametrize(
    ("before", "between", "words"),
    [
        *sampled([(before, 0, words) for words in ("", "its own words") for before in BEFORE], quick=4),
        ({"by": "print"}, 20, ""),
    ],
)
def test_what_an_earlier_job_wrote_is_not_kept_for_another(
    make_site: MakeSite, before: dict[str, object], between: int, words: str
) -> None:
    site = make_site(POOL + "prefetch = 64\n", HANDLERS)
    payloads = [{"says": "SECRET", **before}, *[{"says": ""}] * between, {"says": words, "ends": True}]
    jobs = [site.queue.enqueue("work", payload) for payload in payloads]  # each follows at once
    site.start()
    assert site.queue.wait(jobs[-1], timeout=20).status is Status.QUARANTINED
    [(stderr,)] = site.rows("SELECT stderr FROM job_errors WHERE job_id = ?", jobs[-1])
    assert (stderr or "") == (words and words + "\n")
