"""A worker meets the end of its memory, its own limit, or that of its pool while the load goes on."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from supervisor import Status
from tests.faults.cgroups import Cgroup, cgroup
from tests.faults.programs import HELPED, POOL, program_site
from tests.site_under_test import HANDLERS, MakeSite, kill, wait_for

MIB = 1 << 20
POOLS = """
[defaults]
max_crashes = 2
retry = { max_attempts = 2, base = "10ms" }
[pools.work]
handler = "jobs:work"
workers = 1
[pools.greedy]
handler = "jobs:greedy"
workers = 1
"""
GREEDY = """
def greedy(payload, ctx):
    record("start", ctx)
    hoard = None
    while payload.get("greedy", True):
        hoard = fill(hoard, 1 << 20)
    record("end", ctx)

def fill(hoard, size):
    try:
        return hoard, b"x" * size
    except MemoryError:
        if size < 1 << 12:  # less is left than anything takes; with nothing at all Python itself gives up
            raise
        return fill(hoard, size // 2)
"""


@pytest.fixture
def small() -> Iterator[Cgroup]:
    """Room for a supervisor and its processes, and for 150 MiB or so of a greedy one."""
    with cgroup("memory") as group:
        group.limit(300 * MIB)
        yield group


@pytest.mark.fault(28)
def test_a_worker_that_the_kernel_kills_for_memory_is_named_so_and_its_job_is_quarantined(
    small: Cgroup, make_site: MakeSite
) -> None:
    site = make_site(POOLS, HANDLERS + GREEDY)
    site.start(preexec_fn=small.join)
    hit = site.queue.enqueue("work", {"seconds": 0.5})
    killed = site.running_pid(hit)
    kill(killed)  # by somebody, not by the kernel: that is another reason
    assert wait_for(lambda: site.event("worker_died", pid=killed), "its death")["reason"] == "signal"
    site.done(hit)

    other = site.queue.enqueue("work", {"seconds": 2})
    greedy = site.queue.enqueue("greedy")
    job = site.queue.wait(greedy, timeout=30)
    assert (job.status, job.crashes) == (Status.QUARANTINED, 2), f"cgroup version {small.version}: {job}"
    errors = site.rows("SELECT kind, signal, peak_memory, message FROM job_errors WHERE job_id = ?", greedy)
    assert [(kind, signal) for kind, signal, _, _ in errors] == [("out_of_memory", "SIGKILL")] * 2
    for _, _, peak, message in errors:
        assert 64 * MIB < peak < 300 * MIB
        assert "out of memory" in message
    assert {e["reason"] for e in site.events() if e["event"] == "worker_died" and e["job"] == greedy} == {
        "out_of_memory"
    }
    site.done(other)
    site.done(site.queue.enqueue("greedy", {"greedy": False}))
    site.verdict(hit=[hit, greedy], quarantined=[greedy])


@pytest.mark.fault(29)
def test_the_limit_of_the_address_space_is_an_ordinary_failure_and_the_worker_is_replaced(make_site: MakeSite) -> None:
    site = make_site(POOLS, HANDLERS + GREEDY)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (768 * MIB, 768 * MIB))

    site.start(preexec_fn=limit)
    greedy = site.queue.enqueue("greedy")
    behind = site.queue.enqueue_many("greedy", [{"greedy": False}] * 5)
    job = site.queue.wait(greedy, timeout=30)
    assert (job.status, job.attempts, job.crashes) == (Status.FAILED, 2, 0)
    assert site.rows("SELECT kind FROM job_errors WHERE job_id = ?", greedy) == [("memory",)] * 2
    for other in behind:
        site.done(other)
    lines = [line.split() for line in site.ledger.read_text().splitlines()]
    starts = [number for number, (_, job_id, _, _, _) in enumerate(lines) if int(job_id) == greedy]
    assert len(starts) == 2
    for start in starts:
        assert lines[start][3] not in [pid for _, _, _, pid, _ in lines[start + 1 :]]  # it was its last job
    site.verdict(hit=[greedy], failed=[greedy])
    assert not site.event("worker_died")
    assert site.told("memory_exhausted")


@pytest.mark.fault(28)
def test_a_program_that_the_kernel_kills_for_memory_is_named_so_too(small: Cgroup, make_site: MakeSite) -> None:
    keys = 'max_crashes = 2\nretry = { base = "10ms" }\n'
    site = program_site(make_site, POOL + keys, helped=HELPED)
    site.start(preexec_fn=small.join)
    hit = site.queue.enqueue("helped", {"do": "starts others"})
    begun = site.running_pid(hit)
    wait_for((site.folder / "started").exists, "its first run to be known as such")
    kill(begun)  # by somebody, not by the kernel: that is another reason
    assert site.done(hit).crashes == 1

    greedy = site.queue.enqueue("helped", {"do": "outgrow everything"})
    job = site.queue.wait(greedy, timeout=30)
    assert (job.status, job.crashes) == (Status.QUARANTINED, 2), f"cgroup version {small.version}: {job}"
    errors = site.rows("SELECT job_id, kind, signal, peak_memory, message FROM job_errors ORDER BY id")
    assert [(job_id, kind, signal) for job_id, kind, signal, _, _ in errors] == [
        (hit, "crash", "SIGKILL"),
        *[(greedy, "out_of_memory", "SIGKILL")] * 2,
    ]
    for _, _, _, peak, message in errors[1:]:
        assert 64 * MIB < peak < 300 * MIB
        assert message.startswith("the program was killed by the kernel because it was out of memory")
        assert "at its peak" in message
    site.done(site.queue.enqueue("helped"))


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
