"""Failed jobs that go back by themselves, with real processes."""

from __future__ import annotations

from collections.abc import Callable

from supervisor import Status
from tests.site_under_test import HANDLERS, Site, wait_for

MakeSite = Callable[..., Site]

SECOND = (
    HANDLERS
    + '''
def flaky(payload, ctx):
    """Fails until the file payload["until"] is there."""
    record("start", ctx)
    if not os.path.exists(payload["until"]):
        raise RuntimeError("not there yet")
    record("end", ctx)
'''
)
POOL = """
[pools.flaky]
handler = "jobs:flaky"
workers = 1
retry = { max_attempts = 1 }
"""


def test_a_failed_job_runs_again_after_a_while_and_succeeds_once_it_can(make_site: MakeSite) -> None:
    site = make_site(f'{POOL}retry_failed_every = "100ms"\nretry_failed_times = 1000\n', SECOND)
    there = site.folder / "there"
    job = site.queue.enqueue("flaky", {"until": str(there)})
    site.start()
    wait_for(lambda: len(site.runs("start", job)) >= 3, "two second chances")
    there.touch()
    wait_for(lambda: site.job(job).status is Status.DONE, "its success")
    assert site.told("failed_jobs_revived")


def test_a_burst_ends_with_its_failures(make_site: MakeSite) -> None:
    site = make_site(f'{POOL}retry_failed_every = "1ms"\n', SECOND)
    job = site.queue.enqueue("flaky", {"until": "/nowhere"})
    assert site.start("--burst", wait=False).wait(40) == 1
    assert len(site.runs("start", job)) == 1
