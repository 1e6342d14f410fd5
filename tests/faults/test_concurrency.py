"""Fifty jobs run in one worker when something happens to it, to one of them, or to the database."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import time
from datetime import datetime
from subprocess import Popen

import pytest

from supervisor import Status
from tests.ledger import Ledger
from tests.processes.test_concurrency import HANDLERS, KINDS, all_run, pool, waiting
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.stopwatch import Stopwatch


def fifty(
    make_site: MakeSite, kind: str = "on_loop", jobs: int = 50, **keys: str
) -> tuple[Site, list[int], Popen[bytes]]:
    """A site in whose worker so many jobs run, until the gate is opened; and its supervisor."""
    site = make_site(pool(kind, **keys), HANDLERS)
    ids = waiting(site, jobs)
    supervisor = site.start()
    all_run(site, ids)
    return site, ids, supervisor


def open_gate(site: Site) -> None:
    (site.folder / "gate").touch()


def charges(site: Site) -> set[tuple[int, int]]:
    return set(site.rows("SELECT attempts, crashes FROM jobs WHERE type = 'many'"))


def most_together(site: Site, since: float) -> int:
    """The most jobs that ran at the same time, of those that began after this time."""
    lines = [line for line in Ledger(site.ledger, site.database).lines() if line.at > since]
    ended = {(line.job, line.token) for line in lines if line.what == "end"}
    running = most = 0
    for line in lines:
        if (line.job, line.token) in ended:
            running += 1 if line.what == "start" else -1
        most = max(most, running)
    return most


@KINDS
@pytest.mark.fault(80)
def test_a_killed_worker_charges_none_of_the_fifty_that_ran_in_it(make_site: MakeSite, kind: str) -> None:
    site, jobs, _ = fifty(make_site, kind)
    wait_for(lambda: site.workers("many")[0].running == 50, "the slot to show fifty")
    ended = time.time()
    kill(site.running_pid(jobs[0]))
    wait_for(lambda: len(site.runs("start", jobs[0])) == 2, "the first to run again")
    open_gate(site)
    site.verdict(hit=jobs)
    assert charges(site) == {(1, 0)}
    assert {len(site.runs("start", job)) for job in jobs} == {2}
    assert most_together(site, ended) <= 25


@KINDS
@pytest.mark.fault(80)
def test_of_fifty_jobs_only_the_one_that_kills_is_quarantined(make_site: MakeSite, kind: str) -> None:
    """Half as many run together after each death, until it runs alone."""
    site = make_site(pool(kind), HANDLERS)
    gate = site.folder / "gate"
    gate.touch()
    jobs = waiting(site, 30)
    killer = site.queue.enqueue("many", {"do": "segfault", "until": str(gate)})
    jobs += [*waiting(site, 19), killer]
    site.start()
    assert site.queue.wait(killer, timeout=60).status is Status.QUARANTINED
    site.verdict(hit=jobs, quarantined=[killer])
    charged = site.rows("SELECT id, crashes FROM jobs WHERE type = 'many' AND (attempts <> 1 OR crashes <> 0)")
    assert charged == [(killer, 2)]
    assert site.rows("SELECT DISTINCT job_id FROM job_errors") == [(killer,)]


@pytest.mark.fault(80)
def test_a_killed_supervisor_charges_none_of_the_fifty(make_site: MakeSite) -> None:
    site, jobs, first = fifty(make_site)
    kill(first.pid)
    # While they still run, they would end one by one, and the last one would rightly be charged: it ran alone.
    wait_for(lambda: not site.survivors(first), "its worker to end")
    open_gate(site)
    site.start()
    site.verdict(hit=jobs)
    assert charges(site) == {(1, 0)}
    assert {len(site.runs("start", job)) for job in jobs} == {2}


@pytest.mark.sqlite
@KINDS
@pytest.mark.fault(80)
@pytest.mark.parametrize("killed", ["supervisor", "worker"])
def test_a_run_that_has_ended_is_not_charged_while_its_outcome_is_written(
    make_site: MakeSite, kind: str, killed: str
) -> None:
    site = make_site(pool(kind), HANDLERS)
    job = site.queue.enqueue("many")
    point = "worker:settle_done.before=stop"
    supervisor = site.start(env=site.failpoints(point))
    worker = site.hit(point)
    [shown] = site.workers("many")
    assert (shown.job, shown.running, shown.unsettled) == (0, 0, 1)
    kill(supervisor.pid if killed == "supervisor" else worker)
    if killed == "supervisor":
        site.start()
    site.verdict(hit=[job])
    assert charges(site) == {(1, 0)}
    assert not site.rows("SELECT job_id FROM job_errors")


@pytest.mark.sqlite
@pytest.mark.fault(80)
@pytest.mark.parametrize(
    "point", ["settle_done.before", "settle_done", "settle_done.committed", "claim_group.committed"]
)
def test_a_worker_killed_in_its_transaction_records_nothing_twice(make_site: MakeSite, point: str) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "sleep", "seconds": 0.05}] * 150)
    place = f"worker:{point}=kill"
    site.start(env=site.failpoints(place))
    site.hit(place)
    site.verdict(hit=jobs)
    assert charges(site) == {(1, 0)}


@pytest.mark.fault(81)
def test_a_job_that_blocks_the_event_loop_is_named(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    others = waiting(site, 49)
    site.start()
    all_run(site, others)
    blocker = site.queue.enqueue("many", {"do": "block", "seconds": 3})
    event = wait_for(lambda: site.event("event_loop_blocked"), "the blocked loop to be named")
    assert (event["job"], event["type"]) == (blocker, "many")
    assert "jobs.py" in event["at"]
    assert "time.sleep(payload" in event["stack"]
    open_gate(site)
    site.verdict()


@pytest.mark.fault(82)
@pytest.mark.parametrize(("kind", "how"), [("on_loop", "hang"), ("on_loop", "spin"), ("on_loop", "block"),
                                           ("in_threads", "hang")])  # fmt: skip
def test_of_fifty_jobs_the_one_over_its_limit_fails_and_the_others_go_on(
    make_site: MakeSite, kind: str, how: str
) -> None:
    site = make_site(pool(kind, timeout='"3s"', retry="{ max_attempts = 1 }"), HANDLERS)
    bad = site.queue.enqueue("many", {"do": how, "seconds": 60})
    site.start()
    site.running_pid(bad)
    others = site.queue.enqueue_many("many", [{"do": "sleep", "seconds": 1.0}] * 49)
    site.verdict(hit=[bad], failed=[bad])
    [(kind_of_failure, stack)] = site.rows("SELECT kind, traceback FROM job_errors")
    assert kind_of_failure == "timeout"
    assert "jobs.py" in stack
    assert not site.event("worker_died")
    assert site.told("job_timed_out", job=bad)
    assert {site.job(job).attempts for job in others} == {1}


@pytest.mark.fault(82)
@KINDS
def test_a_job_that_ignores_its_limit_costs_its_worker_and_is_charged_alone(make_site: MakeSite, kind: str) -> None:
    site = make_site(pool(kind, timeout='"2s"', retry="{ max_attempts = 1 }"), HANDLERS)
    bad = site.queue.enqueue("many", {"do": "deaf"})
    site.start()
    site.running_pid(bad)
    wait_for(lambda: site.event("job_timed_out", job=bad), "its limit")
    others = waiting(site, 20)
    all_run(site, others)
    wait_for(lambda: site.event("worker_died", reason="time_limit", job=bad), "the worker to be killed")
    open_gate(site)
    site.verdict(hit=[bad, *others], failed=[bad])
    assert site.rows("SELECT job_id, kind FROM job_errors WHERE job_id = ?", bad) == [(bad, "timeout")]
    assert {site.job(job).crashes for job in others} == {0}
    assert site.rows("SELECT count(*) FROM job_batch_limits") == [(0,)]


def interrupted(site: Site) -> list[str]:
    """When each interrupted job was logged."""
    return [event["timestamp"] for event in site.events() if event.get("event") == "job_interrupted"]


@pytest.mark.fault(83)
@KINDS
def test_forty_of_fifty_jobs_are_cancelled_at_once(make_site: MakeSite, kind: str) -> None:
    """More than a slot has room for."""
    site = make_site(pool(kind, cancel_grace='"500ms"'), HANDLERS)
    bad = site.queue.enqueue_many("many", [{"do": "hang"}] * 40)
    others = waiting(site, 10)
    site.start()
    all_run(site, [*bad, *others])
    watch = Stopwatch()
    site.command("jobs", "cancel", "--yes", *map(str, bad))
    wait_for(lambda: site.count("cancelled") == 40, "the forty to be cancelled")
    assert site.count("running") == 10
    wait_for(lambda: len(interrupted(site)) == 40, "the log to name each")
    told = interrupted(site)
    spread = datetime.fromisoformat(max(told)) - datetime.fromisoformat(min(told))
    assert watch.seconds(spread.total_seconds()) < 3  # not one slotful after the other
    open_gate(site)
    site.verdict(cancelled=bad)
    assert not site.event("worker_died")


@pytest.mark.sqlite
@pytest.mark.fault(84)
@KINDS
def test_fifty_jobs_end_while_the_database_cannot_be_written(make_site: MakeSite, kind: str) -> None:
    site, jobs, _ = fifty(make_site, kind)
    with contextlib.closing(sqlite3.connect(site.database, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        open_gate(site)
        wait_for(lambda: all(site.runs("end", job) for job in jobs), "all to end")
        wait_for(lambda: site.event("store_failed"), "the worker to notice")
        other.execute("ROLLBACK")
    site.verdict()
    assert charges(site) == {(1, 0)}


@pytest.mark.sqlite
@pytest.mark.fault(84)
@pytest.mark.parametrize(
    ("kind", "others"), sampled([("on_loop", 3), ("in_threads", 0), ("on_loop", 0), ("in_threads", 3)], quick=2)
)
def test_a_run_that_has_ended_in_time_has_no_limit_while_its_outcome_cannot_be_written(
    make_site: MakeSite, kind: str, others: int
) -> None:
    site = make_site(pool(kind, timeout='"3s"', kill_grace='"300ms"', retry="{ max_attempts = 1 }"), HANDLERS)
    job = site.queue.enqueue("many", {"do": "sleep", "seconds": 1.0})
    beside = waiting(site, others)
    site.start()
    all_run(site, [job, *beside])
    [(_, _, began)] = site.runs("start", job)
    with contextlib.closing(sqlite3.connect(site.database, timeout=30, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        wait_for(lambda: site.runs("end", job), "it to end")
        wait_for(lambda: time.time() > began + 4.5, "its limit and kill_grace to pass")
        other.execute("ROLLBACK")
    open_gate(site)
    site.verdict()
    assert charges(site) == {(1, 0)}
    assert not site.event("job_timed_out")
    assert not site.event("worker_died")


@pytest.mark.sqlite
@pytest.mark.fault(84)
def test_a_time_limit_is_kept_while_progress_and_outcomes_cannot_be_written(make_site: MakeSite) -> None:
    """The turn that settles the one that has ended waits for 6 s, and the other's limit ends meanwhile."""
    site = make_site(pool("on_loop", timeout='"3s"', kill_grace='"500ms"', retry="{ max_attempts = 1 }"), HANDLERS)
    late = site.queue.enqueue("many", {"do": "report"})
    ended = waiting(site, 1)
    site.start()
    all_run(site, [late, *ended])
    [(_, _, began)] = site.runs("start", late)
    with contextlib.closing(sqlite3.connect(site.database, timeout=30, isolation_level=None)) as other:
        wait_for(lambda: time.time() > began + 2.0, "progress to be written for a while")
        other.execute("BEGIN IMMEDIATE")
        open_gate(site)
        wait_for(lambda: time.time() > began + 6.5, "the limit and kill_grace to pass")
        other.execute("ROLLBACK")
    site.verdict(failed=[late])
    assert site.event("job_timed_out", job=late)
    assert not site.event("worker_died")


@pytest.mark.sqlite
@pytest.mark.fault(84)
@pytest.mark.parametrize(
    "point",
    [
        "settle_done=fail:busy*3",
        "settle_done.committed=fail:error",
        "claim_group=fail:full",
        "claim_group.committed=fail:error",
        "batch_limits=fail:busy*2",
    ],
)
def test_a_statement_that_fails_beside_fifty_jobs_loses_nothing(make_site: MakeSite, point: str) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{"do": "sleep", "seconds": 0.05}] * 150)
    site.start(env=site.failpoints(f"worker:{point}"))
    site.hit(f"worker:{point}")
    site.verdict()
    assert {len(site.runs("start", job)) for job in jobs} == {1}


@pytest.mark.fault(85)
@KINDS
def test_a_drain_lets_fifty_jobs_end_and_begins_no_other(make_site: MakeSite, kind: str) -> None:
    site, jobs, supervisor = fifty(make_site, kind)
    later = site.queue.enqueue("many")
    supervisor.send_signal(signal.SIGTERM)
    [worker] = site.workers("many")
    wait_for(lambda: site.slot(worker).read().drain, "the drain to be requested")
    open_gate(site)
    assert supervisor.wait(20) == 0
    assert {site.job(job).status for job in jobs} == {Status.DONE}
    site.verdict(pending=[later])


@pytest.mark.sqlite
@pytest.mark.fault(85)
def test_jobs_that_were_claimed_just_before_a_drain_do_not_begin(make_site: MakeSite) -> None:
    site = make_site(pool("on_loop"), HANDLERS)
    jobs = site.queue.enqueue_many("many", [{}] * 50)
    point = "worker:claim_group.committed=stop"
    supervisor = site.start(env=site.failpoints(point))
    stopped = site.hit(point)
    supervisor.send_signal(signal.SIGTERM)
    [worker] = site.workers("many")
    wait_for(lambda: site.slot(worker).read().drain, "the drain to be requested")
    os.kill(stopped, signal.SIGCONT)
    assert supervisor.wait(20) == 0
    site.verdict(pending=jobs)
    assert charges(site) == {(0, 0)}
    assert not any(site.runs("start", job) for job in jobs)


@pytest.mark.fault(85)
def test_jobs_that_outlast_the_grace_return_uncharged(make_site: MakeSite) -> None:
    site, jobs, supervisor = fifty(make_site, shutdown_grace='"500ms"')
    assert site.stop(supervisor) == 0
    site.verdict(hit=jobs, pending=jobs)
    assert charges(site) == {(0, 0)}
    assert site.rows("SELECT count(*) FROM job_batch_limits") == [(0,)]


@pytest.mark.fault(85)
def test_a_reload_lets_fifty_jobs_end_in_the_old_worker(make_site: MakeSite) -> None:
    site, jobs, supervisor = fifty(make_site)
    old = site.running_pid(jobs[0])
    supervisor.send_signal(signal.SIGHUP)
    wait_for(lambda: any(worker.pid != old for worker in site.workers("many")), "the successor")
    job = site.queue.enqueue("many")
    assert site.done(job).result == job
    open_gate(site)
    site.verdict()
    assert {pid for job in jobs for _, pid, _ in site.runs("start", job)} == {old}


@pytest.mark.fault(45)
def test_of_jobs_that_run_together_the_one_that_ruins_the_process_is_quarantined(make_site: MakeSite) -> None:
    ruin = '    elif what == "ruin":\n        os.closerange(3, 5000)\n'
    handlers = HANDLERS.replace('    elif what == "raise":', f'{ruin}    elif what == "raise":')
    site = make_site(pool("on_loop"), handlers)
    jobs = site.queue.enqueue_many("many", [{"do": "ruin"} if n == 5 else {} for n in range(8)])
    site.start()
    assert site.queue.wait(jobs[5], timeout=60).status is Status.QUARANTINED
    site.verdict(hit=jobs, quarantined=[jobs[5]])
    assert {site.job(job).crashes for job in jobs if job != jobs[5]} == {0}


@pytest.mark.fault(84)
def test_a_claim_that_one_of_fifty_jobs_has_lost_costs_the_others_nothing(make_site: MakeSite) -> None:
    site, jobs, _ = fifty(make_site)
    site.rows(
        "UPDATE jobs SET status = 'pending', locked_by = NULL, locked_at = NULL, lock_expires_at = NULL, "
        "claim_token = claim_token + 1 WHERE id = ? RETURNING id",
        jobs[7],
    )
    open_gate(site)
    site.verdict(hit=[jobs[7]])
    assert site.told("claim_lost", job=jobs[7])
    assert not site.event("worker_died")


@pytest.mark.fault(44)
@KINDS
def test_a_process_that_one_of_fifty_jobs_forks_runs_none_of_the_others(make_site: MakeSite, kind: str) -> None:
    site, jobs, _ = fifty(make_site, kind, jobs=20)
    forking = [site.queue.enqueue("many", {"do": "fork"}) for _ in range(3)]
    for job in forking:
        site.done(job)
    open_gate(site)
    site.verdict()
    assert {pid for job in jobs for _, pid, _ in site.runs("end", job)} == {site.running_pid(jobs[0])}


HOLDS = """
import asyncio, ctypes, time
from ledger import record

def hold(seconds):
    if seconds > 5:
        sum(range(10**10))  # no other thread runs, and no signal ends it
    ctypes.PyDLL(None).sleep(seconds)  # a signal ends it

class Awaits:
    async def handle(self, payload, ctx):
        record("start", ctx)
        if "holds" in payload:
            hold(payload["holds"])
        await asyncio.sleep(0.3)
        record("end", ctx)

def work(payload, ctx):
    record("start", ctx)
    if "holds" in payload:
        hold(payload["holds"])
    time.sleep(0.3)
    record("end", ctx)
"""


@pytest.mark.fault(80)
@pytest.mark.parametrize("handler", ["Awaits", "work"])
@pytest.mark.parametrize("holds", [3, 60])
def test_no_job_is_charged_for_the_time_in_which_another_one_holds_the_interpreter(
    make_site: MakeSite, handler: str, holds: int
) -> None:
    site = make_site(
        f'[pools.many]\nhandler = "jobs:{handler}"\nworkers = 1\nconcurrency = 8\ntimeout = "1s"\nkill_grace = "1s"\n'
        "retry = { max_attempts = 1 }\n",
        HOLDS,
    )
    others = site.queue.enqueue_many("many", [{}] * 2)
    [guilty] = site.queue.enqueue_many("many", [{"holds": holds}])
    others += site.queue.enqueue_many("many", [{}] * 3)
    site.start()
    ended = site.queue.wait(guilty, timeout=60)
    jobs = [site.done(job) for job in others]
    assert {(job.attempts, job.crashes) for job in jobs} == {(1, 0)}
    if holds > 5:
        assert (ended.status, ended.attempts) == (Status.FAILED, 1)
        assert site.event("worker_died", reason="silent")
    site.verdict(failed=[guilty] if ended.status is Status.FAILED else [], hit=[guilty, *others])
