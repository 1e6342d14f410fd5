"""A handler that ruins its worker's process: the worker leaves at once, and no neighbour is charged or failed."""

from __future__ import annotations

import pytest

from supervisor import Status
from supervisor.worker.fitness import EXIT_RUINED
from tests.faults.lone_worker import LoneWorker
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site
from tests.stopwatch import Stopwatch

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\nretry = { max_attempts = 1 }\n'
HANDLERS = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    time.sleep(payload.get("seconds", 0))
    if "how" in payload:
        RUINS[payload["how"]]()
    else:
        record("end", ctx)
    return {"pid": os.getpid()}

def close_and_open():
    os.closerange(3, 4096)
    for number in range(20):
        open(f"other-{number}", "wb", buffering=0).write(b"mine")
        globals()[f"file{number}"] = os.open(f"other-{number}", os.O_RDWR)

def one_replaced():
    '''The database's own descriptors, or those of the connections to it, stand for another file.'''
    other = os.open("other", os.O_RDWR | os.O_CREAT)
    for name in os.listdir("/proc/self/fd"):
        if int(name) != other:
            link = os.readlink(f"/proc/self/fd/{name}")
            if "app.db" in link or link.startswith("socket:"):
                os.dup2(other, int(name))
    raise ValueError("and it fails")

RUINS = {
    "closes all": lambda: os.closerange(3, 4096),
    "closes and opens": close_and_open,
    "replaces one": one_replaced,
}
"""
RUINOUS = ["closes all", "closes and opens", "replaces one"]


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site(POOL, HANDLERS)


@pytest.mark.fault(45)
@pytest.mark.parametrize("how", sampled(RUINOUS, quick=2))
@pytest.mark.parametrize("cautious", [True, False])
def test_a_worker_whose_process_is_ruined_leaves_and_settles_nothing_wrongly(
    site: Site, how: str, cautious: bool
) -> None:
    """A cautious one with the very run that has ruined it."""
    before = site.queue.enqueue_many("work", [{}] * (1 if cautious else 5))
    ruinous = site.queue.enqueue("work", {"how": how, "seconds": 0.02 if cautious else 0})  # long enough to be measured
    behind = site.queue.enqueue_many("work", [{}] * 9)
    code, slot = LoneWorker(site, cautious=cautious).ended()
    assert (code, slot.job) == (EXIT_RUINED, 0)
    assert slot.unsettled >= 1
    if cautious:
        assert (slot.unsettled, slot.last_job) == (1, ruinous)
        assert "descriptor" in slot.text
        assert site.job(before[0]).status is Status.DONE
        assert not any(site.runs("start", job) for job in behind)
    jobs = [*before, ruinous, *behind]
    assert {site.job(job).status for job in jobs} <= {Status.DONE, Status.RUNNING, Status.PENDING}
    assert site.rows("SELECT count(*) FROM job_errors") == [(0,)]
    assert not [name for name in site.folder.glob("other*") if name.read_bytes() not in (b"", b"mine")]


@pytest.mark.fault(45)
def test_what_is_committed_is_counted_by_whichever_thread_commits_it(make_site: MakeSite) -> None:
    site = make_site(POOL)
    site.queue.enqueue_many("work", [{"seconds": 0.001}] * 30 + [{"seconds": 0.3}] + [{}] * 30)
    worker = LoneWorker(site)
    assert worker.rested(61).done == 61
    code, slot = worker.drain()
    assert (code, slot.unsettled, slot.done) == (0, 0, 61)
    site.verdict()


@pytest.mark.fault(45)
def test_a_cautious_worker_of_batches_takes_one_job_at_a_time(make_site: MakeSite) -> None:
    handlers = (
        "class work:\n    def handle_batch(self, payloads, ctx):\n        return [len(payloads)] * len(payloads)\n"
    )
    site = make_site(f"{POOL}batch_size = 8\n", handlers)
    jobs = site.queue.enqueue_many("work", [{}] * 6)
    worker = LoneWorker(site, cautious=True)
    assert {site.done(job).result for job in jobs} == {1}
    assert worker.drain()[0] == 0


@pytest.mark.fault(45)
@pytest.mark.parametrize("prefetch", ['"auto"', "1"])
def test_a_job_that_closes_all_descriptors_is_quarantined_and_fifty_others_are_done(
    make_site: MakeSite, prefetch: str
) -> None:
    pool = POOL.replace("max_attempts = 1", 'base = "100ms", jitter = 0')
    site = make_site(f"{pool}max_crashes = 3\nprefetch = {prefetch}\n", HANDLERS)
    site.start()
    guilty = site.queue.enqueue("work", {"how": "closes all"})
    watch = Stopwatch()
    good = site.queue.enqueue_many("work", [{}] * 50)
    for job in good:
        assert site.done(job).crashes <= 1
    assert watch.seconds() < 15  # 5 on a machine that does nothing else
    ended = site.queue.wait(guilty, timeout=30)
    assert (ended.status, ended.crashes) == (Status.QUARANTINED, 3)
    assert len(site.runs("start", guilty)) <= 6
