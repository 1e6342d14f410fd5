"""The answer to a commit is lost: jobs are claimed, and their worker does not know it."""

from __future__ import annotations

import pytest

from tests.site_under_test import MakeSite
from tests.stopwatch import Stopwatch


@pytest.mark.fault(71)
@pytest.mark.parametrize(
    ("make_site", "concurrency", "point"),
    [
        ("sqlite", 1, "claim_one.committed=fail:error"),
        ("sqlite", 4, "claim_group.committed=fail:error"),
        ("postgres", 1, "settle_and_claim.committed=fail:lost"),
        ("postgres", 4, "settle_and_claim.committed=fail:lost"),
    ],
    indirect=["make_site"],
)
def test_what_an_idle_worker_has_claimed_unknowingly_runs_at_once_and_is_not_charged(
    make_site: MakeSite, concurrency: int, point: str
) -> None:
    """Their locks would run out before it looks for jobs again without being woken."""
    site = make_site(
        f'[pools.work]\nhandler = "jobs:work"\nworkers = 1\nlock_time = "1s"\nconcurrency = {concurrency}\n'
    )
    job = site.queue.enqueue("work")
    site.start(env=site.failpoints(f"worker:{point}"))
    site.hit(f"worker:{point}")
    watch = Stopwatch()
    site.done(job)
    assert watch.seconds() < 1
    site.verdict()
