"""The maintainer dies or hangs between a death report and its commit: the report is sent again, and counts once."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.stopwatch import Stopwatch

ONCE = '[pools.once]\nhandler = "jobs:once"\nworkers = 2\n'

# In the order in which a report is dealt with. The last two come after its commit.
PLACES = [
    "death.received",
    "held_by",
    "settle.before",
    "settle",
    "insert_error",
    "insert_run",
    "forget_worker",
    "forget_worker.committed",
    "death.settled",
]


@pytest.mark.fault(38)
@pytest.mark.parametrize("place", PLACES)
def test_a_death_is_settled_once_although_the_maintainer_is_killed_meanwhile(make_site: MakeSite, place: str) -> None:
    site = make_site(ONCE)
    point = f"maintainer:{place}=kill"
    site.start(env=site.failpoints(point))
    job = site.queue.enqueue("once")
    kill(site.running_pid(job))
    maintainer = site.hit(point)
    settled_once(site, job)
    assert site.told("maintainer_died", pid=maintainer)


@pytest.mark.fault(38)
def test_a_death_is_settled_once_although_the_maintainer_is_stopped_meanwhile(make_site: MakeSite) -> None:
    site = make_site(ONCE)
    point = "maintainer:death.received=stop"
    site.start(env=site.failpoints(point))
    job = site.queue.enqueue("once")
    kill(site.running_pid(job))
    maintainer = site.hit(point)
    wait_for(lambda: site.event("maintainer_stuck", pid=maintainer), "its beat to be 15 s late", patience=40)
    settled_once(site, job)


def settled_once(site: Site, job: int) -> None:
    watch = Stopwatch()
    site.verdict(hit=[job])
    gone = wait_for(lambda: site.event("maintainer_died"), "the maintainer's end")
    gone_at = datetime.fromisoformat(gone["timestamp"]).timestamp()
    [_, (_, _, again_at)] = site.runs("start", job)
    assert watch.seconds(again_at - gone_at) < 1.0
    assert (site.job(job).crashes, site.job(job).attempts) == (1, 1)
    assert site.rows("SELECT kind FROM job_errors WHERE job_id = ?", job) == [("crash",)]
    wait_for(lambda: len(site.workers("once")) == 2, "both workers")
