"""Every failed attempt is told in the log, bounded, and without the payload."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor import Status
from supervisor.telemetry import MOST_FAILURES
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]

POOL = """
[pools.flaky]
handler = "jobs:flaky"
workers = 1
retry = { max_attempts = 2, base = "20ms", jitter = 0 }
"""
HANDLER = """
import os, time
from supervisor import Fail

def flaky(payload, ctx):
    while payload.get("deaf"):
        try:
            time.sleep(60)
        except BaseException:
            pass
    if payload.get("dies"):
        os._exit(3)
    if payload.get("slow"):
        time.sleep(2)
    if payload.get("for_good"):
        raise Fail("never")
    if payload.get("bad"):
        raise ValueError("no such cat\\nand more of it")
"""


def test_each_failed_attempt_is_an_event_with_what_one_looks_for(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLER)
    site.start()
    job = site.queue.enqueue("flaky", {"bad": True, "secret": "hush"})
    wait_for(lambda: site.job(job).status is Status.FAILED, "its failure")
    found = wait_for(lambda: len(failures(site)) == 2 and failures(site), "two events")
    first, last = found
    assert (first["event"], last["event"]) == ("job_failed", "job_given_up")
    common = {"pool": "flaky", "job": job, "type": "flaky", "max_attempts": 2, "kind": "exception"}
    for event in found:
        assert common.items() <= event.items()
        assert event["worker"].startswith("flaky-")
        assert event["error"] == "ValueError: no such cat"
    assert (first["level"], first["attempt"], first["retry_in"]) == ("warning", 1, 0.02)
    assert (last["level"], last["attempt"], "retry_in" in last) == ("error", 2, False)
    assert "hush" not in site.log.read_text()


@pytest.mark.parametrize(
    ("payload", "more", "kind", "error"),
    [
        ({"for_good": True}, "", "permanent", "never"),
        ({"deaf": True}, 'timeout = "100ms"\nkill_grace = "1s"\n', "timeout", "over its time limit of 100ms"),
    ],
)
def test_what_fails_for_good_or_for_the_last_time_is_an_error_at_once_and_a_success_is_no_failure(
    make_site: MakeSite, payload: dict[str, object], more: str, kind: str, error: str
) -> None:
    site = make_site(POOL.replace("max_attempts = 2", "max_attempts = 1") + more, HANDLER)
    site.start()
    site.done(site.queue.enqueue("flaky", {}))
    job = site.queue.enqueue("flaky", payload)
    event = wait_for(lambda: site.event("job_given_up"), "the event")
    assert (event["job"], event["type"], event["level"], event["kind"]) == (job, "flaky", "error", kind)
    assert event["error"].startswith(error)


def test_a_failure_is_told_too_when_it_is_settled_beside_a_slow_job(make_site: MakeSite) -> None:
    site = make_site(POOL + "prefetch = 2\nheartbeat_timeout = '2s'\n", HANDLER)
    bad = site.queue.enqueue("flaky", {"for_good": True}, priority=1)
    slow = site.queue.enqueue("flaky", {"slow": True})
    site.start()
    wait_for(lambda: site.event("job_given_up", job=bad), "the event")
    assert site.job(slow).status is Status.RUNNING


def test_a_storm_of_failures_does_not_flood_the_log_and_a_burst_says_how_many_there_were(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLER)
    count = 500
    for _ in range(count):
        site.queue.enqueue("flaky", {"for_good": True})
    run = site.start("--burst", wait=False)
    assert run.wait(60) == 1
    told = len(failures(site))
    rest = sum(event["count"] for event in site.events() if event["event"] == "more_jobs_failed")
    assert told + rest == count
    assert MOST_FAILURES <= told < count / 2
    said = site.log.read_text()
    assert f"error: {count} jobs failed\n" in said
    assert "hint: supervisor jobs list --status failed" in said


def test_a_job_that_kills_its_workers_is_an_event_each_time_and_at_last_quarantined(make_site: MakeSite) -> None:
    site = make_site(POOL + "max_crashes = 2\n", HANDLER)
    site.start()
    job = site.queue.enqueue("flaky", {"dies": True})
    last = wait_for(lambda: site.event("job_quarantined"), "the last event")
    [first] = failures(site)
    assert (first["event"], first["level"], first["retry_in"]) == ("job_failed", "warning", 0.0)
    assert last["level"] == "error"
    for event in (first, last):
        assert (event["job"], event["type"], event["attempt"], event["kind"]) == (job, "flaky", 1, "crash")
        assert event["worker"].startswith("flaky-")
        assert "3" in event["error"]


def failures(site: Site) -> list[dict[str, object]]:
    return [event for event in site.events() if event["event"] in ("job_failed", "job_given_up")]
