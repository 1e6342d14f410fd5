"""The maintainer is killed and stopped at every statement of its duties towards claims."""

from __future__ import annotations

import os
import signal

import pytest

from supervisor.engine import open_engine
from supervisor.system.scoreboard import Scoreboard
from tests.ledger import Ledger
from tests.site_under_test import MakeSite, Site
from tests.store.kit import Desk, supervisor_record, worker_record

pytestmark = pytest.mark.long  # every place there is; other tests here show the same faults once each

POOL = """
[pools.work]
handler = "jobs:work"
workers = 2
lock_time = "1s"
prefetch = 2
"""
HANDLERS = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    if payload == "deadly" and ctx.token == 1:
        os.kill(os.getpid(), 9)
    time.sleep(payload if isinstance(payload, float) else 0)
    record("end", ctx)
"""
DEATH = ["held_by", "settle", "insert_error", "insert_run", "forget_worker"]
RECOVERY = ["register_supervisor", "supervisors", "workers_of", *DEATH, "forget_supervisor"]
RECLAIM = ["expired", "worker", "claim_of", "adopt_unowned", "settle", "insert_error", "insert_run"]
RENEWAL = ["needs_renewal", "renew"]
WHEN = (".before", "", ".committed")


def ways(statements: list[str]) -> list[object]:
    """Killed at each of a statement's places, or stopped and continued at all of them in turn."""
    found = []
    for statement in statements:
        points = [f"maintainer:{statement}{when}" for when in WHEN]
        found += [pytest.param([f"{point}=kill"], id=f"{point}=kill") for point in points]
        found.append(pytest.param([f"{point}=stop" for point in points], id=f"{points[1]}=stop"))
    return found


def see_through(site: Site, points: list[str]) -> None:
    """Wait for each of the points in turn, and continue who was stopped."""
    for point in points:
        pid = site.hit(point)
        if "=stop" in point:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.fault(38)
@pytest.mark.parametrize("points", ways(DEATH))
def test_a_death_is_settled_once_whatever_happens_to_the_maintainer(make_site: MakeSite, points: list[str]) -> None:
    site = make_site(POOL, HANDLERS)
    deadly, *others = site.queue.enqueue_many("work", ["deadly", *[None] * 5])
    run = site.start("--burst", wait=False, env=site.failpoints(*points))
    see_through(site, points)
    assert run.wait(40) == 0
    site.verdict(hit=[deadly])
    assert (site.job(deadly).crashes, site.job(deadly).attempts) == (1, 1)
    assert site.rows("SELECT job_id, kind FROM job_errors") == [(deadly, "crash")]
    assert [site.job(job).attempts for job in others] == [1] * 5


def a_dead_supervisors_jobs(site: Site) -> list[int]:
    """What one leaves behind that was killed with two workers: four claims, of which one had begun."""
    jobs = site.queue.enqueue_many("work", [None] * 4)
    board = Scoreboard.create(site.folder / "scoreboard-dead")
    board.use_up_to(2)
    desk = Desk.at(open_engine(site.url))
    lock = desk.engine.database.folder / "owner-dead.lock"
    lock.touch()  # which nobody holds
    dead = supervisor_record("dead", desk.engine, str(lock), scoreboard=str(board.path))
    desk.maintenance.registry.register(dead)
    for number, worker in enumerate(("w1", "w2"), 1):
        board.slot(number).assign(worker, f"work-{number}")
        desk.claims.register(worker_record(worker, "dead", slot=number))
        claims = desk.claim(["work"], 2, owner=worker, now=4e9)
        assert len(claims) == 2
    board.slot(2).begin(claims[0].job_id, claims[0].token, 1.0, 0.0)
    desk.close()
    return jobs


@pytest.mark.fault(7)
@pytest.mark.parametrize("points", ways(RECOVERY))
def test_the_dead_are_recovered_once_whatever_happens_to_the_maintainer(make_site: MakeSite, points: list[str]) -> None:
    site = make_site(POOL, HANDLERS)
    jobs = a_dead_supervisors_jobs(site)
    run = site.start("--burst", wait=False, env=site.failpoints(*points))
    see_through(site, points)
    assert run.wait(40) == 0
    recovered_once(site, jobs)


@pytest.mark.fault(7)
@pytest.mark.parametrize("place", ["supervisors", "workers_of", "held_by"])
def test_two_that_recover_the_same_dead_at_once_give_each_job_back_once(make_site: MakeSite, place: str) -> None:
    site = make_site(POOL, HANDLERS)
    jobs = a_dead_supervisors_jobs(site)
    point = f"maintainer:{place}=stop"
    first = site.start("--burst", wait=False, env=site.failpoints(point))
    stopped = site.hit(point)  # it has read what another is about to change
    assert site.start("--burst", wait=False).wait(40) == 0
    os.kill(stopped, signal.SIGCONT)
    assert first.wait(40) == 0
    recovered_once(site, jobs)


def recovered_once(site: Site, jobs: list[int]) -> None:
    site.verdict(hit=[jobs[2]])
    assert [site.job(job).crashes for job in jobs] == [0, 0, 1, 0]
    assert [site.job(job).attempts for job in jobs] == [1] * 4
    assert [len(site.runs("start", job)) for job in jobs] == [1] * 4
    assert site.rows("SELECT job_id, kind FROM job_errors") == [(jobs[2], "interrupted")]
    assert site.rows("SELECT (SELECT count(*) FROM job_supervisors), (SELECT count(*) FROM job_workers)") == [(0, 0)]


@pytest.mark.fault(6)
@pytest.mark.parametrize("points", ways(RECLAIM))
def test_an_expired_claim_is_taken_once_whatever_happens_to_the_maintainer(
    make_site: MakeSite, points: list[str]
) -> None:
    site = make_site(POOL, HANDLERS)
    [(ghost,)] = site.rows(
        "INSERT INTO jobs(type, status, locked_by, lock_expires_at) VALUES ('work', 'running', 'ghost', 1) RETURNING id"
    )
    [(manual,)] = site.rows("INSERT INTO jobs(type, status) VALUES ('work', 'running') RETURNING id")
    site.start(wait=False, env=site.failpoints(*points))
    see_through(site, points)
    site.queue.enqueue("work")
    site.verdict(hit=[ghost, manual], others=[ghost, manual])
    assert [site.job(job).crashes for job in (ghost, manual)] == [1, 1]
    assert sorted(site.rows("SELECT job_id, kind FROM job_errors")) == [(ghost, "expired"), (manual, "expired")]
    assert [len(site.runs("start", job)) for job in (ghost, manual)] == [1, 1]


@pytest.mark.fault(13)
@pytest.mark.parametrize("points", ways(RENEWAL))
def test_a_lock_holds_whatever_happens_to_the_maintainer_that_renews_it(make_site: MakeSite, points: list[str]) -> None:
    site = make_site(POOL, HANDLERS)
    site.queue.enqueue_many("work", [1.2, 1.2])  # longer than their locks
    run = site.start("--burst", wait=False, env=site.failpoints(*points))
    see_through(site, points)
    assert run.wait(40) == 0
    site.verdict()
    assert not site.event("lock_reclaimed")
    lines = Ledger(site.ledger, site.where).lines()
    assert [line.what for line in lines] == ["start", "start", "end", "end"]
