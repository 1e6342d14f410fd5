"""Supervisors, templates and maintainers are killed: nothing outlives them, and what they held goes on at once."""

from __future__ import annotations

import time
from datetime import datetime

import psutil
import pytest

from supervisor import Status
from tests.site_under_test import MakeSite, kill, wait_for
from tests.stopwatch import Stopwatch

# Two pools of the same work, so that two supervisors can share it out as the test wants.
FAMILY = """
[defaults]
min_workers = 0
max_workers = 1
prefetch = 8
[pools.first]
types = ["family"]
handler = "jobs:family"
[pools.second]
types = ["family"]
handler = "jobs:family"
"""
HANDLERS = """
import os, subprocess, time
from pathlib import Path
from ledger import record

def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

def family(payload, ctx):
    '''In its first run it starts a program in a session of its own, and kills the supervisor.'''
    record("start", ctx)
    if payload and not os.path.exists(payload):
        child = subprocess.Popen(["sleep", "300"], start_new_session=True)
        Path(payload).write_text(str(child.pid))
        os.kill(parent_of(os.getppid()), 9)
        time.sleep(300)
    record("end", ctx)
"""


@pytest.mark.fault(7)
@pytest.mark.parametrize("heir", ["the next start", "a living peer"])
def test_nothing_outlives_a_killed_supervisor_and_its_jobs_go_on_at_once(make_site: MakeSite, heir: str) -> None:
    site = make_site(FAMILY, HANDLERS)
    if heir == "a living peer":
        site.rows("INSERT INTO job_controls VALUES ('workers', 'second', 0, 0)")  # so that the first gets all eight
        peer = site.start("--pool", "second")
        wait_for(
            lambda: site.supervisor_status(peer).get("pools", {}).get("second", {}).get("fixed") == 0, "it to know"
        )
    sleeper = site.folder / "sleeper"
    jobs = site.queue.enqueue_many("family", [str(sleeper) if n == 2 else None for n in range(8)])
    first = site.start("--pool", "first", wait=False)
    first.wait(20)  # its third job kills it
    watch, killed_at = Stopwatch(), time.time()
    assert sleeper.read_text()
    wait_for(lambda: not site.survivors(first), "all descendants, the sleep too, to be gone", patience=1.0)
    site.rows("DELETE FROM job_controls")
    if heir == "the next start":
        held = [job for (job,) in site.rows("SELECT id FROM jobs WHERE status = 'running'")]
        assert jobs[2] in held  # all eight, unless a slow machine has settled and given back the others meanwhile
        began = time.time()
        second = site.start("--pool", "second")
        assert site.told("recovered", pid_of=second, supervisors=1, jobs=len(held))
    else:
        began = killed_at
    wait_for(lambda: len(site.runs("start", jobs[2])) == 2, "it to run again")
    assert watch.seconds(site.runs("start", jobs[2])[1][2] - began) < 3
    site.verdict(hit=jobs[:3])
    assert [site.job(job).crashes for job in jobs] == [0, 0, 1, 0, 0, 0, 0, 0]
    assert [site.job(job).attempts for job in jobs] == [1] * 8
    repeats = [len(site.runs("start", job)) for job in jobs]
    assert repeats[2:] == [2, 1, 1, 1, 1, 1]
    assert max(repeats[:2]) <= 2  # had ended, and may not have been settled


@pytest.mark.fault(7)
def test_a_job_interrupted_with_its_supervisor_is_failed_where_the_pool_says_so(make_site: MakeSite) -> None:
    site = make_site('[pools.once]\nhandler = "jobs:once"\nworkers = 1\nrecover = "failed"\n')
    first = site.start()
    job = site.queue.enqueue("once")
    site.running_pid(job)
    kill(first.pid)
    first.wait()
    site.start()
    site.verdict(hit=[job], failed=[job])
    assert "supervisor died" in str(site.job(job).last_error)


@pytest.mark.fault(33)
def test_two_supervisors_on_one_file_both_work_and_never_take_each_others_jobs(make_site: MakeSite) -> None:
    site = make_site(
        """
        [pools.work]
        handler = "jobs:work"
        workers = 2
        lock_time = "1s"
        """
    )
    over = site.folder / "over"
    payload = {"seconds": 1.5, "until": str(over)}
    site.start()
    jobs = site.queue.enqueue_many("work", [payload] * 2)
    for job in jobs:
        site.running_pid(job)
    site.start()  # its start-up recovery finds jobs that run
    jobs += site.queue.enqueue_many("work", [payload] * 2)
    assert len({site.running_pid(job) for job in jobs}) == 4
    over.touch()
    site.verdict()
    assert not site.event("lock_reclaimed")
    assert not site.event("supervisor_recovered")


@pytest.mark.fault(39, 46)
def test_a_killed_template_charges_no_job_and_its_pools_recover(make_site: MakeSite) -> None:
    site = make_site(
        """
        [pools.once]
        handler = "jobs:once"
        workers = 2
        [pools.twin]
        handler = "jobs:once"
        workers = 2
        """
    )
    supervisor = site.start()
    jobs = site.queue.enqueue_many("once", [{}] * 2) + site.queue.enqueue_many("twin", [{}] * 2)
    workers = [site.running_pid(job) for job in jobs]
    [template] = {psutil.Process(worker).ppid() for worker in workers}  # pools of one module share it
    assert template != supervisor.pid
    kill(template)
    site.verdict(hit=jobs)
    assert [(site.job(job).crashes, site.job(job).attempts) for job in jobs] == [(0, 1)] * 4
    assert site.rows("SELECT count(*) FROM job_errors") == [(0,)]
    assert site.told("template_died", pid=template)
    for pool in ("once", "twin"):
        wait_for(lambda pool=pool: len({w.pid for w in site.workers(pool)} - set(workers)) == 2, "two new workers")
    assert not site.event("pool_isolated")


MIXED = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    if payload.get("poison"):
        os.kill(os.getppid(), 9)
        time.sleep(60)
    time.sleep(0.2)
    record("end", ctx)
"""
CONFIG = """
[defaults]
retry = { base = "100ms", jitter = 0 }
max_crashes = 3
[pools.mixed]
handler = "jobs:work"
types = ["poison", "work"]
workers = 3
[pools.other]
handler = "jobs:work"
workers = 1
"""


@pytest.mark.fault(46)
def test_a_job_that_kills_its_template_is_found_and_its_neighbours_run_three_times_at_most(make_site: MakeSite) -> None:
    site = make_site(CONFIG, MIXED)
    site.start()
    guilty = site.queue.enqueue("poison", {"poison": True})
    innocent = [site.queue.enqueue("work", {}) for _ in range(8)]
    others = [site.queue.enqueue("other", {}) for _ in range(4)]
    ended = site.queue.wait(guilty, timeout=30)
    assert (ended.status, ended.crashes) == (Status.QUARANTINED, 3)
    for job in (*innocent, *others):
        assert site.done(job).crashes == 0
        assert len(site.runs("start", job)) <= 3
    assert len(site.runs("start", guilty)) <= 6
    [(message,)] = site.rows("SELECT DISTINCT message FROM job_errors WHERE job_id = ?", guilty)
    assert "while only this job was running" in message
    wait_for(lambda: len(site.workers("mixed")) == 3, "all workers again")


# In the order in which a report is dealt with. The last two come after its commit.
PLACES = [
    *("death.received", "held_by", "settle.before", "settle", "insert_error", "insert_run", "forget_worker"),
    *("forget_worker.committed", "death.settled"),
]


@pytest.mark.fault(38)
@pytest.mark.parametrize("point", [*(f"{place}=kill" for place in PLACES), "death.received=stop"])
def test_a_death_is_settled_once_although_the_maintainer_is_killed_or_stopped_meanwhile(
    make_site: MakeSite, point: str
) -> None:
    site = make_site('[pools.once]\nhandler = "jobs:once"\nworkers = 2\n')
    site.start(env=site.failpoints(f"maintainer:{point}"))
    job = site.queue.enqueue("once")
    kill(site.running_pid(job))
    maintainer = site.hit(f"maintainer:{point}")
    if point.endswith("stop"):
        wait_for(lambda: site.event("maintainer_stuck", pid=maintainer), "its beat to be 15 s late", patience=40)
    watch = Stopwatch()
    site.verdict(hit=[job])
    gone = wait_for(lambda: site.event("maintainer_died", pid=maintainer), "the maintainer's end")
    gone_at = datetime.fromisoformat(gone["timestamp"]).timestamp()
    [_, (_, _, again_at)] = site.runs("start", job)
    assert watch.seconds(again_at - gone_at) < 1.0
    assert (site.job(job).crashes, site.job(job).attempts) == (1, 1)
    assert site.rows("SELECT kind FROM job_errors WHERE job_id = ?", job) == [("crash",)]
    wait_for(lambda: len(site.workers("once")) == 2, "both workers")
