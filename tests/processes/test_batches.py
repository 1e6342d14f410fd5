"""Handlers that take several jobs at a time: what a batch does, and what becomes of it when something goes wrong."""

from __future__ import annotations

import signal
from collections.abc import Callable

import psutil
import pytest

from supervisor import Status
from tests.site_under_test import Site, kill, wait_for

MakeSite = Callable[..., Site]
POOL = """
[pools.batch]
handler = "jobs:Batch"
workers = 1
batch_size = 16
batch_wait = "50ms"
max_crashes = 2
retry = { max_attempts = 2, base = "10ms" }
"""
HANDLERS = """
import ctypes, os, time
from ledger import record

class Batch:
    def handle_batch(self, payloads, ctx):
        with open("sizes", "a") as sizes:
            sizes.write(f"{len(payloads)}\\n")
        for job in ctx.jobs:
            record("start", job)
        if payloads[0].get("tell"):
            self.tell(ctx)
        for payload in payloads:
            self.do(payload.get("do"), payload, ctx)
        for job in ctx.jobs:
            record("end", job)
        return [job.job_id for job in ctx.jobs]

    def tell(self, ctx):
        ctx.log.info("together")
        ctx.jobs[-1].log.info("the last")

    def do(self, what, payload, ctx):
        if what == "segfault":
            ctypes.string_at(0)
        elif what == "raise":
            raise ValueError("somebody's payload")
        elif what == "hang":
            time.sleep(60)
        elif what == "deaf":
            while True:
                try:
                    time.sleep(60)
                except BaseException:
                    pass
        elif what == "wait":
            while not os.path.exists(payload["until"]):
                time.sleep(0.005)
"""


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site(POOL, HANDLERS)


def sizes(site: Site) -> list[int]:
    return [int(line) for line in (site.folder / "sizes").read_text().split()]


def batch_with(site: Site, what: str) -> list[int]:
    """Sixteen jobs that are claimed together; the eleventh is the special one."""
    return site.queue.enqueue_many("batch", [{"do": what} if n == 10 else {} for n in range(16)])


def test_jobs_run_together_and_each_has_its_own_result_and_what_its_batch_says_and_uses(site: Site) -> None:
    jobs = site.queue.enqueue_many("batch", [{"tell": True}] * 40)
    site.start()
    site.verdict()
    assert [site.job(job).result for job in jobs] == jobs
    assert sizes(site)[:2] == [16, 16]
    assert max(sizes(site)) == 16
    rows = site.rows("SELECT job_id, outcome, log, cpu_time, peak_memory FROM job_runs ORDER BY job_id")
    assert [(job, outcome) for job, outcome, *_ in rows] == [(job, "done") for job in jobs]
    for _, _, log, cpu_time, peak_memory in rows:
        assert [line.split()[1:] for line in log.splitlines()] == [["info", "together"], ["info", "the", "last"]]
        assert cpu_time >= 0
        assert peak_memory > 1 << 20


def test_a_segmentation_fault_quarantines_one_job_of_sixteen_and_charges_nobody_else(site: Site) -> None:
    jobs = batch_with(site, "segfault")
    site.start()
    site.verdict(hit=jobs, quarantined=[jobs[10]])
    charged = site.rows(
        "SELECT id, attempts, crashes FROM jobs WHERE type = 'batch' AND (attempts <> 1 OR crashes <> 0)"
    )
    assert charged == [(jobs[10], 0, 2)]
    assert site.rows("SELECT DISTINCT job_id FROM job_errors") == [(jobs[10],)]


def test_a_batch_that_raises_is_split_until_the_one_is_found_that_fails_alone(site: Site) -> None:
    jobs = batch_with(site, "raise")
    site.start()
    site.verdict(hit=jobs, failed=[jobs[10]])
    assert site.rows("SELECT id, attempts FROM jobs WHERE type = 'batch' AND attempts <> 1") == [(jobs[10], 2)]
    assert site.rows("SELECT message FROM job_errors") == [("ValueError: somebody's payload",)] * 2
    assert not site.event("worker_died")
    assert sizes(site)[0] == 16
    event = site.event("batch_failed")
    assert (event["jobs"], event["types"], event["pool"]) == (jobs, ["batch"], "batch")
    assert event["worker"].startswith("batch-")


@pytest.mark.parametrize("how", ["hang", "deaf"])
def test_a_batch_over_its_time_is_split(make_site: MakeSite, how: str) -> None:
    """Whether its handler lets go, or has to be killed."""
    limits = f'timeout = "200ms"\nkill_grace = "{"1s" if how == "deaf" else "5s"}"'
    site = make_site(POOL.replace("batch_size = 16", f"batch_size = 2\n{limits}"), HANDLERS)
    good, bad = site.queue.enqueue_many("batch", [{}, {"do": how}])
    site.start()
    site.verdict(hit=[good, bad], failed=[bad])
    assert (site.job(good).attempts, site.job(bad).attempts) == (1, 2)
    assert site.rows("SELECT kind FROM job_errors") == [("timeout",)] * 2
    if how == "hang":
        event = site.event("batch_failed")
        assert (event["jobs"], event["error"]) == ([good, bad], "over its time limit of 200ms")
        frames = [line for line in event["stack"].splitlines() if line.startswith("  File ")]
        assert frames
        assert all("jobs.py" in frame for frame in frames), event["stack"]


@pytest.mark.parametrize("whom", ["worker", "supervisor"])
def test_who_is_killed_with_a_batch_charges_none_of_its_jobs(site: Site, whom: str) -> None:
    gate = site.folder / "gate"
    jobs = site.queue.enqueue_many("batch", [{"do": "wait", "until": str(gate)}] * 16)
    first = site.start()
    pid = site.running_pid(jobs[-1])
    kill(pid if whom == "worker" else first.pid)
    wait_for(lambda: not psutil.pid_exists(pid), "the worker to be gone")
    gate.touch()
    if whom == "supervisor":
        site.start()
    site.verdict(hit=jobs)
    assert set(site.rows("SELECT attempts, crashes FROM jobs WHERE type = 'batch'")) == {(1, 0)}
    assert sizes(site)[0] == 16
    assert max(sizes(site)[1:]) == 8


def test_a_batch_waits_a_little_for_more(make_site: MakeSite) -> None:
    site = make_site(POOL.replace('"50ms"', '"30s"'), HANDLERS)
    supervisor = site.start()
    jobs = [site.queue.enqueue("batch")]
    wait_for(lambda: site.count("running") == 1, "the first to be claimed")
    jobs += [site.queue.enqueue("batch") for _ in range(15)]
    site.verdict()
    assert sizes(site) == [16]
    # Told to leave, it does not wait for what may come.
    last = site.queue.enqueue("batch")
    wait_for(lambda: site.count("running") == 1, "the last to be claimed")
    assert site.stop(supervisor, signal.SIGTERM) == 0
    job = site.job(last)
    assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)
