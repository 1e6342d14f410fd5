"""Alerts of a running supervisor."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from supervisor import Job
from tests.site_under_test import HANDLERS, Site, wait_for

MakeSite = Callable[..., Site]
CONFIG = """
[pools.alarm]
handler = "jobs:alarm"
workers = 1
[pools.broken]
handler = "nowhere:handle"
workers = 1
[pools.failing]
handler = "jobs:failing"
workers = 1
retry = { max_attempts = 1 }
[[alerts]]
when = "given_up"
enqueue = "alarm"
payload = { to = "ops" }
[[alerts]]
when = "pool_broken"
enqueue = "alarm"
"""
WORKING = (
    HANDLERS
    + """
def alarm(payload, ctx):
    return payload

def failing(payload, ctx):
    raise ValueError("no")
"""
)


def alarms(site: Site) -> list[Job]:
    return [site.job(job) for (job,) in site.rows("SELECT id FROM jobs WHERE type = 'alarm' ORDER BY id")]


def told(site: Site, when: str) -> list[dict[str, Any]]:
    return [job.payload["alert"] for job in alarms(site) if job.payload["alert"]["when"] == when]


def test_failures_and_broken_pools_are_told_once_however_often_the_maintainer_dies(make_site: MakeSite) -> None:
    site = make_site(CONFIG, WORKING)
    process = site.start()
    wait_for(lambda: told(site, "pool_broken"), "the alert about the broken pool")
    assert "cannot start its workers" in told(site, "pool_broken")[0]["summary"]

    first = site.queue.enqueue("failing")
    wait_for(lambda: told(site, "given_up"), "the alert about the failed job")
    [facts] = told(site, "given_up")
    assert (facts["job"], facts["jobs"], facts["error"]) == (first, 1, "ValueError: no")
    for job in alarms(site):
        assert site.done(job.id).result == job.payload

    maintainer = site.maintainer(process)
    os.kill(maintainer, signal.SIGKILL)
    wait_for(lambda: site.maintainer(process) not in (0, maintainer), "another maintainer")
    site.queue.wait(site.queue.enqueue("failing"), timeout=30)
    wait_for(lambda: '"held": {"failing"' in json.dumps(state(site)), "the next failure to be held back")
    assert (len(told(site, "given_up")), len(told(site, "pool_broken"))) == (1, 1)


def state(site: Site) -> list[Any]:
    return [json.loads(value) for (value,) in site.rows("SELECT value FROM job_meta WHERE key LIKE 'alert:%'")]
