"""A stop is asked for, at any moment and by whatever signals: it is never lost, and it charges no job."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time

import psutil
import pytest

from supervisor import Status
from tests.samples import sampled
from tests.site_under_test import MakeSite, descendants, wait_for
from tests.stopwatch import Stopwatch

WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\n'
ADMIN = '[admin]\nlisten = "127.0.0.1:0"\n'
FORKS = [
    f"{parent}:fork_{child}{when}"
    for when in (".child", ".before", "")
    for parent, child in (
        ("supervisor", "maintainer"),
        ("supervisor", "admin"),
        ("supervisor", "template"),
        ("template", "worker"),
    )
]


def tell(pid: int, number: int) -> None:
    """Send a signal, unless the first that was told to leave has already taken this one with it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.mark.fault(8)
@pytest.mark.parametrize("place", sampled(FORKS, quick=8))
def test_terminate_in_the_middle_of_a_fork_is_not_lost_and_leaves_no_orphan(make_site: MakeSite, place: str) -> None:
    site = make_site(WORK + (ADMIN if "admin" in place else ""))
    job = site.queue.enqueue("work", {"seconds": 0.1})
    point = f"{place}=stop"
    supervisor = site.start(wait=False, env=site.failpoints(point))
    stopped = site.hit(point)
    for pid in {supervisor.pid, stopped, *site.survivors(supervisor)}:
        tell(pid, signal.SIGTERM)  # as to a whole cgroup
    tell(stopped, signal.SIGCONT)
    assert supervisor.wait(20) == 0
    assert site.survivors(supervisor) == []
    site.verdict(pending=[job] if site.job(job).status is Status.PENDING else [])
    assert site.job(job).crashes == 0
    assert site.rows("SELECT (SELECT count(*) FROM job_supervisors), (SELECT count(*) FROM job_workers)") == [(0, 0)]


@pytest.mark.fault(8)
def test_terminate_at_any_moment_of_the_start_ends_everything(make_site: MakeSite) -> None:
    site = make_site(WORK.replace("2", "10"))
    jobs = site.queue.enqueue_many("work", [{"seconds": 0.01}] * 200)
    seed = random.randrange(1000)
    moments = random.Random(seed)
    for _ in range(5):
        supervisor = site.start(wait=False)
        wait_for(lambda supervisor=supervisor: site.event("supervisor_started", pid=supervisor.pid), "its start")
        time.sleep(moments.uniform(0, 0.06))  # the whole start takes about so long
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(20) == 0, seed
        assert site.survivors(supervisor) == [], seed
    site.start()
    site.verdict()
    assert [site.job(job).attempts for job in jobs] == [1] * 200


@pytest.mark.fault(9)
@pytest.mark.parametrize(
    ("make_site", "prefetch", "claims"),
    [("sqlite", 1, "claim_one"), ("sqlite", 8, "claim_group"), ("postgres", 8, "settle_and_claim")],
    indirect=["make_site"],
)
def test_terminate_between_claim_and_start_releases_the_job_uncharged(
    make_site: MakeSite, prefetch: int, claims: str
) -> None:
    site = make_site(f'[pools.work]\nhandler = "jobs:work"\nworkers = 1\nprefetch = {prefetch}\n')
    jobs = site.queue.enqueue_many("work", [{}] * 8)
    point = f"worker:{claims}.committed=stop"
    supervisor = site.start(env=site.failpoints(point))
    worker = site.hit(point)
    assert site.count("running") == prefetch
    supervisor.send_signal(signal.SIGTERM)
    [slot] = [site.slot(view) for view in site.workers("work")]
    wait_for(lambda: slot.read().drain, "the drain")
    os.kill(worker, signal.SIGCONT)
    assert supervisor.wait(20) == 0
    assert [(site.job(job).attempts, site.job(job).crashes) for job in jobs] == [(0, 0)] * 8
    assert not site.ledger.exists()
    site.verdict(pending=jobs)


@pytest.mark.fault(10)
def test_terminate_drains_and_a_second_one_releases_at_once(make_site: MakeSite) -> None:
    site = make_site(WORK)
    first = site.start()
    quick = site.queue.enqueue("work", {"seconds": 0.5})
    site.running_pid(quick)
    assert site.stop(first) == 0
    assert site.job(quick).status is Status.DONE
    assert site.rows("SELECT count(*) FROM job_supervisors") == [(0,)]

    second = site.start()
    slow = site.queue.enqueue("work", {"seconds": 60})
    site.running_pid(slow)
    second.send_signal(signal.SIGTERM)
    wait_for(lambda: site.event("stopping", pid_of=second), "the drain")
    watch = Stopwatch()
    assert site.stop(second, signal.SIGINT) == 0
    assert watch.seconds() < 5
    job = site.job(slow)
    assert (job.status, job.attempts, job.crashes) == (Status.PENDING, 0, 0)
    assert site.survivors(second) == []
    site.verdict(pending=[slow])


@pytest.mark.fault(40)
@pytest.mark.parametrize("admin", ["", ADMIN])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_whole_terminal_or_cgroup_drains_like_terminate(
    make_site: MakeSite, number: int, admin: str
) -> None:
    site = make_site(WORK + admin)
    supervisor = site.start(start_new_session=True)
    wait_for(lambda: len(site.workers("work")) == 2, "both workers")
    job = site.queue.enqueue("work", {"seconds": 0.5})
    assert os.getsid(site.running_pid(job)) != supervisor.pid  # a worker's own signals reach nobody else
    if number == signal.SIGINT:
        os.killpg(supervisor.pid, number)
    else:
        tree = [*descendants(supervisor.pid), psutil.Process(supervisor.pid)]
        assert len(tree) == 5 + bool(admin)  # maintainer, template, two workers
        for process in tree:
            process.send_signal(number)
    assert supervisor.wait(20) == 0
    assert site.survivors(supervisor) == []
    site.verdict()  # the job that was running is done, in one run
    for event in ("worker_died", "maintainer_died", "admin_died", "template_died"):
        assert not site.event(event)
    assert site.rows("SELECT (SELECT count(*) FROM job_supervisors), (SELECT count(*) FROM job_workers)") == [(0, 0)]
