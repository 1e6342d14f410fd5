"""Processes that are stopped, starved, or hold the interpreter's lock: judged fairly, and nothing counts twice."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.site_under_test import MakeSite, descendants, wait_for

SHORT = """
[pools.work]
handler = "jobs:work"
workers = 1
lock_time = "1s"
"""


def suspend(*processes: psutil.Process) -> None:
    for process in processes:
        process.suspend()


def resume(*processes: psutil.Process) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


@pytest.mark.fault(5, 6)
@pytest.mark.parametrize("who", ["a worker and the maintainer that renews its lock", "the whole tree"])
def test_a_peer_takes_the_jobs_of_the_stopped_and_their_late_result_is_refused(make_site: MakeSite, who: str) -> None:
    site = make_site(SHORT)
    first = site.start()
    job = site.queue.enqueue("work", {"seconds": 0.3})
    pid = site.running_pid(job)
    stopped = [psutil.Process(pid), psutil.Process(site.maintainer(first))]
    if who == "the whole tree":
        stopped = [psutil.Process(first.pid), *descendants(first.pid)]
    suspend(*stopped)
    began = time.monotonic()
    second = site.start()
    done = site.done(job)
    assert time.monotonic() - began > 1  # not before its lock_time was over
    assert site.told("lock_reclaimed", pid_of=second, job=job)
    resume(*stopped)
    wait_for(lambda: site.event("claim_lost", job=job), "the late result to be refused")
    assert len(site.runs("end", job)) == 2  # it did end, and did not count
    assert site.job(job) == done
    assert done.result["pid"] != pid
    site.verdict(hit=[job])


@pytest.mark.fault(5)
def test_a_stopped_worker_is_killed_and_its_job_runs_again(make_site: MakeSite) -> None:
    site = make_site(
        """
        [pools.once]
        handler = "jobs:once"
        workers = 1
        heartbeat_timeout = "1s"
        lock_time = "1s"
        """
    )
    site.start()
    job = site.queue.enqueue("once")
    pid = site.running_pid(job)
    suspend(psutil.Process(pid))
    done = site.done(job)
    assert (done.crashes, done.attempts) == (1, 1)
    assert site.told("worker_died", reason="stopped", pid=pid)
    site.verdict(hit=[job])


@pytest.mark.fault(6)
def test_a_stopped_supervisor_takes_nothing_from_its_own_workers(make_site: MakeSite) -> None:
    site = make_site(SHORT)
    supervisor = site.start()
    slow = site.queue.enqueue("work", {"seconds": 2})
    pid = site.running_pid(slow)
    supervisor.send_signal(signal.SIGSTOP)
    site.start()  # a peer, which must leave them alone
    done = site.done(slow)
    assert done.result == {"pid": pid}
    assert done.completed_at - done.started_at > 1.5  # well past its lock, which was renewed without the supervisor
    site.queue.enqueue_many("work", [{}] * 10)
    site.verdict()
    assert not site.event("lock_reclaimed")
    supervisor.send_signal(signal.SIGCONT)
    site.queue.enqueue_many("work", [{}] * 10)
    site.verdict()


@pytest.mark.fault(13)
def test_a_handler_that_holds_the_interpreters_lock_is_not_declared_dead(make_site: MakeSite) -> None:
    site = make_site(
        """
        [pools.greedy]
        handler = "jobs:greedy"
        workers = 1
        heartbeat_timeout = "1s"
        lock_time = "1s"
        """,
        "import time\nfrom ledger import record\n"
        "MODULUS = (1 << 20000) - 1\n"
        "def raise_three(bits):\n    began = time.thread_time()\n    pow(3, (1 << bits) - 1, MODULUS)\n"
        "    return time.thread_time() - began\n"
        "def greedy(payload, ctx):\n"
        "    record('start', ctx)\n"
        "    second = 300 / raise_three(300)\n"
        "    raise_three(int(2.5 * second))  # one call of native code, which lets no other thread run\n"
        "    record('end', ctx)\n",
    )
    for _ in range(2):
        site.start()  # one is the peer, which would reclaim an expired lock
    job = site.queue.enqueue("greedy")
    site.running_pid(job)
    [(first_expiry,)] = site.rows("SELECT lock_expires_at FROM jobs WHERE id = ?", job)
    [worker] = [w for w in site.workers("greedy") if w.job == job]
    slot = site.slot(worker)
    wait_for(lambda: time.monotonic() - slot.read().beat > 1.5, "a beat later than the limit")
    wait_for(
        lambda: site.rows("SELECT 1 FROM jobs WHERE id = ? AND lock_expires_at > ?", job, first_expiry + 1),
        "the lock to be renewed past its time",
    )
    assert slot.read().job == job
    site.verdict()
    assert not site.event("worker_died")
    assert not site.event("lock_reclaimed")


@contextlib.contextmanager
def one_core() -> Iterator[None]:
    """What is started meanwhile runs on one core, so that other tests keep the rest of the machine."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.fault(31)
def test_starved_workers_lose_no_lock(make_site: MakeSite) -> None:
    site = make_site(SHORT.replace("workers = 1", "workers = 3") + 'heartbeat_timeout = "1s"\n')
    with one_core():
        hogs = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
        try:
            site.start()
            site.start()
            site.queue.enqueue_many("work", [{"seconds": 2.5}] * 4 + [{"seconds": 0}] * 200)
            site.verdict()
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
    assert not site.event("lock_reclaimed")
    assert not site.event("worker_died")
