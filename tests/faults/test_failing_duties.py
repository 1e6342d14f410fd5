"""A duty of the maintainer fails again and again: that costs no other duty anything, and `status` says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from supervisor.domain.recovery import JobPolicy
from supervisor.engine import open_engine
from supervisor.store.base import WorkerRecord
from supervisor.system import kernel
from tests.faults.surroundings import command
from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.store.kit import Desk, supervisor_record

POOL = """
[pools.work]
handler = "jobs:work"
types = ["work", "good"]
workers = 3
lock_time = "1s"
"""
SCHEDULES = """
[[schedules]]
name = "bad"
type = "bad"
every = "1s"

[[schedules]]
name = "good"
type = "good"
every = "1s"
"""
POISON = "OLD.payload LIKE '%poison%' AND NEW.status <> 'running'"


def failing(site: Site) -> dict[str, str]:
    """The duties that `status` says fail, and why."""
    [shown] = json.loads(command(site, "status", "--json"))["supervisors"]
    return {duty["name"]: duty["error"] for duty in shown["duties"]}


@pytest.mark.fault(64)
def test_a_schedule_whose_job_is_refused_costs_nobody_a_lock_and_status_names_it(make_site: MakeSite) -> None:
    site = make_site(POOL + SCHEDULES)
    site.refuse("INSERT", "NEW.type = 'bad'", "nothing bad here")
    supervisor = site.start()
    long = site.queue.enqueue("work", {"seconds": 4})
    worker = site.running_pid(long)
    wait_for(lambda: site.event("duty_failed", duty="schedule bad"), "the schedule to fail")
    wait_for(lambda: len(site.rows("SELECT 1 FROM jobs WHERE type = 'good' AND status = 'done'")) >= 2, "the other")
    wait_for(lambda: site.supervisor_status(supervisor)["duties"], "the supervisor to hear of it")
    assert "nothing bad here" in failing(site)["schedule bad"]
    text = command(site, "status")
    assert "its duty schedule bad has been failing for " in text
    hit = site.queue.enqueue("work", {"seconds": 60})
    kill(site.running_pid(hit))  # deaths are settled, too
    wait_for(lambda: site.job(hit).crashes == 1, "its death to be settled")
    assert site.done(long).attempts == 1  # four times as long as its lock holds
    assert site.runs("end", long)[0][1] == worker
    assert not site.event("lock_reclaimed")
    assert not site.event("maintainer_died")
    site.refuse_no_more()
    wait_for(lambda: site.rows("SELECT 1 FROM jobs WHERE type = 'bad'"), "the schedule to fire")
    wait_for(lambda: not site.supervisor_status(supervisor)["duties"], "the supervisor to hear that all is well")


@pytest.mark.fault(64)
def test_a_death_that_cannot_be_settled_holds_up_no_other(make_site: MakeSite) -> None:
    site = make_site(POOL)
    site.refuse("UPDATE", POISON, "poison stays")
    supervisor = site.start()
    poisoned = site.queue.enqueue("work", {"seconds": 60, "poison": True})
    hit = site.queue.enqueue("work", {"seconds": 60})
    kill(site.running_pid(poisoned))
    wait_for(lambda: "deaths" in site.supervisor_status(supervisor)["duties"], "the refusal to be told")
    kill(site.running_pid(hit))
    wait_for(lambda: site.job(hit).crashes == 1, "the other death to be settled")
    assert "poison stays" in failing(site)["deaths"]
    site.refuse_no_more()
    wait_for(lambda: site.job(poisoned).crashes == 1, "the death to be settled")
    wait_for(lambda: not site.supervisor_status(supervisor)["duties"], "all to be well")


@pytest.mark.fault(64)
def test_one_expired_row_that_cannot_be_written_holds_up_no_other(make_site: MakeSite) -> None:
    site = make_site(POOL)
    insert = "INSERT INTO jobs(type, payload, status, locked_by, lock_expires_at) VALUES ('work', ?, 'running', 'x', 1)"
    for number in range(3):
        site.rows(insert, '{"poison": true}' if number == 0 else "{}")
    site.refuse("UPDATE", POISON, "poison stays")
    supervisor = site.start()
    wait_for(lambda: site.count("done") == 2, "the others to be taken back and run")
    wait_for(lambda: "poison stays" in str(site.supervisor_status(supervisor)["duties"]), "the refusal to be told")
    site.refuse_no_more()
    wait_for(lambda: site.count("done") == 3, "all to be run")


# What a killed supervisor leaves


def a_dead_supervisor(site: Site, process: int, *, started: int | None, scoreboard: Path) -> int:
    """Its registry says that this process is its worker, which holds a job. Returns the job."""
    desk = Desk.at(open_engine(site.url))
    job = site.queue.enqueue("work")
    record = supervisor_record("dead", desk.engine, "gone", scoreboard=str(scoreboard), host=os.uname().nodename)
    desk.maintenance.registry.register(record)
    policy = JobPolicy().encode()
    desk.claims.register(WorkerRecord("w1", "dead", "work", "work-1", process, 1, policy, 0.0, started))
    desk.claim(["work"], 1, owner="w1", now=4e9)
    desk.close()
    return job


@pytest.mark.fault(49)
def test_a_worker_that_outlives_its_supervisor_is_ended_before_its_jobs_are_taken(make_site: MakeSite) -> None:
    site = make_site(POOL)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        os.kill(process.pid, signal.SIGSTOP)  # it would not even notice
        started = kernel.start_ticks(process.pid)
        job = a_dead_supervisor(site, process.pid, started=started, scoreboard=site.folder / "none")
        site.start()
        assert process.wait(10) == -signal.SIGKILL
        site.done(job)
        ended = site.event("survivors_ended")
        assert ended is not None
        assert ended["pids"] == [process.pid]
    site.verdict(hit=[job])


@pytest.mark.fault(49)
@pytest.mark.parametrize("known", [True, False])
def test_a_stranger_that_has_the_number_of_a_dead_supervisors_worker_lives_on(make_site: MakeSite, known: bool) -> None:
    site = make_site(POOL)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as stranger:
        started = kernel.start_ticks(stranger.pid)
        assert started is not None
        earlier = started - 1 if known else None
        job = a_dead_supervisor(site, stranger.pid, started=earlier, scoreboard=site.folder / "none")
        site.start()
        site.done(job)
        assert psutil.Process(stranger.pid).status() != psutil.STATUS_ZOMBIE
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.fault(69)
def test_the_files_of_a_killed_supervisor_are_removed_by_whoever_recovers_it(make_site: MakeSite) -> None:
    site = make_site(POOL)
    dead = site.start()
    site.done(site.queue.enqueue("work"))
    [board] = site.scoreboards()
    files = [board, Path(f"{board}.run-logs"), Path(f"{board}.counters")]
    assert board.exists()
    assert Path(f"{board}.counters").exists()
    kill(dead.pid)
    dead.wait()
    site.start()
    wait_for(lambda: site.event("supervisor_recovered"), "the recovery")
    assert [file for file in files if file.exists()] == []


@pytest.mark.fault(69)
def test_files_that_only_the_registry_calls_a_scoreboard_stay(make_site: MakeSite) -> None:
    site = make_site(POOL)
    precious = site.folder / "precious"
    precious.write_text("mine")
    link = site.folder / "scoreboard-dead"
    link.symlink_to(precious)
    job = a_dead_supervisor(site, 2**22 - 1, started=1, scoreboard=link)
    desk = Desk.at(open_engine(site.url))
    desk.maintenance.registry.register(supervisor_record("other", desk.engine, "gone", scoreboard=str(precious)))
    desk.close()
    site.start()
    site.done(job)
    assert len(site.scoreboards()) == 1
    assert precious.read_text() == "mine"
    assert link.is_symlink()
