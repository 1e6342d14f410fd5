"""Workers that grow after their set-up: limits of memory are kept while the load goes on."""

from __future__ import annotations

import pytest

from tests.site_under_test import MakeSite, wait_for

JOBS = """
import os, time
from ledger import record

class Grows:
    def setup(self, ctx):
        self.kept = []
        if os.path.exists("slow"):
            time.sleep(3)
    def handle(self, payload, ctx):
        record("start", ctx)
        if not self.kept or payload.get("on"):
            self.kept.append(b"m" * (payload["mib"] << 20))
        time.sleep(payload.get("seconds", 0.05))
        record("end", ctx)
"""


@pytest.mark.fault(55)
def test_a_pool_whose_workers_have_grown_comes_down_to_its_budget_while_the_load_goes_on(make_site: MakeSite) -> None:
    site = make_site(
        '[pools.grows]\nhandler = "jobs:Grows"\nmin_workers = 1\nmax_workers = 4\nmemory_budget = "240MiB"\n', JOBS
    )
    supervisor = site.start()
    jobs = site.queue.enqueue_many("grows", [{"mib": 1, "seconds": 0.05}] * 40)
    wait_for(lambda: len(site.workers("grows")) == 4, "four small workers")
    for job in jobs:
        site.done(job)
    jobs = site.queue.enqueue_many("grows", [{"mib": 120, "seconds": 0.1, "on": True}] * 4)
    load = site.queue.enqueue_many("grows", [{"mib": 1, "seconds": 0.1}] * 600)
    wait_for(lambda: site.supervisor_status(supervisor)["pools"]["grows"]["target"] == 1, "it to be noticed")
    wait_for(lambda: len(site.workers("grows")) == 1, "the surplus to leave")
    assert site.job(load[-1]).status == "pending"  # long before the load has ended
    for job in jobs:
        assert site.done(job).crashes == 0


@pytest.mark.fault(55)
def test_a_worker_far_over_max_memory_leaves_before_its_successor_is_ready(make_site: MakeSite) -> None:
    site = make_site('[pools.grows]\nhandler = "jobs:Grows"\nworkers = 1\nmax_memory = "150MiB"\n', JOBS)
    supervisor = site.start()
    wait_for(lambda: [w for w in site.workers("grows") if w.state == 2], "the worker")
    (site.folder / "slow").touch()
    jobs = site.queue.enqueue_many("grows", [{"mib": 15, "on": True, "seconds": 0.2}] * 30)
    largest = 0

    def over() -> bool:
        nonlocal largest
        memory = site.supervisor_status(supervisor)["pools"]["grows"]["memory"]
        largest = max(largest, *memory.values(), 0)
        return all(site.job(job).status.finished for job in jobs[:20])

    wait_for(over, "the jobs", patience=40)
    assert largest < 1.5 * (150 << 20)
    assert site.told("worker_left")
