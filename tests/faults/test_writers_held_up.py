"""Somebody holds what others need: the write lock, our writers' lock as a stopped process, or an old snapshot."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from supervisor.store.sqlite.maintenance import ALARM
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import State
from tests.site_under_test import MakeSite, Site, kill, wait_for
from tests.stopwatch import Stopwatch

POOL = """
[pools.work]
handler = "jobs:work"
workers = 2
lock_time = "1s"
"""
CLIENT = "import sys; from supervisor import Queue; print(Queue(sys.argv[1]).enqueue('work'))"


@pytest.mark.sqlite
@pytest.mark.fault(23)
def test_an_application_that_blocks_the_database_costs_nobody_a_lock(make_site: MakeSite) -> None:
    site = make_site(POOL.replace("workers = 2", "workers = 1"))
    site.start()
    site.start()
    jobs = site.queue.enqueue_many("work", [{"seconds": 1}] * 2)
    for job in jobs:
        site.running_pid(job)
    with blocked(site):
        wait_for(lambda: site.event("store_failed"), "somebody to notice")
    jobs.append(site.queue.enqueue("work"))
    for job in jobs:
        assert site.done(job).crashes == 0
    site.verdict()
    assert not site.event("lock_reclaimed")
    assert not site.event("worker_died")


@pytest.mark.sqlite
@pytest.mark.fault(23)
def test_a_death_while_the_database_is_blocked_is_settled_afterwards(make_site: MakeSite) -> None:
    site = make_site(POOL.replace("1s", "60s"))
    site.start()
    jobs = site.queue.enqueue_many("work", [{"seconds": 0.5}] * 2)
    hit, other = jobs
    pids = [site.running_pid(job) for job in jobs]
    with blocked(site):
        kill(pids[0])
        wait_for(lambda: site.event("store_failed", process="maintainer"), "the maintainer to fail")
    for job in jobs:
        site.done(job)
    assert (site.job(hit).crashes, site.job(other).crashes) == (1, 0)
    site.verdict(hit=[hit])


@pytest.mark.sqlite
@pytest.mark.fault(24)
def test_a_stopped_worker_that_holds_the_writers_lock_is_killed_at_once(make_site: MakeSite) -> None:
    site = make_site(POOL)
    site.start()
    jobs, gate = site.held("work", 2)
    for job in jobs:
        site.running_pid(job)
    stopped = stop_holder(site, lambda pid: pid in [worker.pid for worker in site.workers()], gate.touch)
    watch = Stopwatch()
    jobs.append(site.queue.enqueue("work"))
    for job in jobs:
        site.done(job)
    assert wait_for(lambda: site.event("worker_died", pid=stopped), "its death")["reason"] == "stopped"
    assert watch.seconds() < 10
    site.verdict(hit=jobs[:2])  # what it had finished could not be recorded


@pytest.mark.sqlite
@pytest.mark.fault(24)
def test_a_stopped_maintainer_that_holds_the_writers_lock_is_replaced_at_once(make_site: MakeSite) -> None:
    site = make_site(POOL)
    supervisor = site.start()
    wait_until_idle(site)
    jobs = [site.queue.enqueue("work", {"seconds": 3})]
    site.running_pid(jobs[0])
    [board] = site.scoreboards()
    stopped = stop_holder(site, lambda pid: pid == maintainer(board))
    watch = Stopwatch()
    jobs += site.queue.enqueue_many("work", [{}] * 10)
    for job in jobs[1:]:
        site.done(job)
    wait_for(lambda: maintainer(board) not in (0, stopped), "another maintainer")
    assert watch.seconds() < 10  # without the lock it would be found by its beat, after 15 s
    site.done(jobs[0])
    site.verdict()
    assert site.told("maintainer_stopped", pid=stopped)
    assert not site.event("lock_reclaimed")
    assert supervisor.poll() is None


@pytest.mark.sqlite
@pytest.mark.fault(24)
def test_a_stopped_client_that_holds_the_writers_lock_is_passed_by(make_site: MakeSite) -> None:
    site = make_site(POOL)
    site.start()
    wait_until_idle(site)
    client = subprocess.Popen([sys.executable, "-c", CLIENT, site.url], stdout=subprocess.PIPE)
    with client, contextlib.ExitStack() as stack:
        stack.callback(client.kill)
        stop_holder(site, lambda pid: pid == client.pid)
        watch = Stopwatch()
        jobs = [site.queue.enqueue("work") for _ in range(10)]
        for job in jobs:
            site.done(job)
        assert watch.seconds() < 8  # every process waits a second, once
        assert psutil.Process(client.pid).status() == psutil.STATUS_STOPPED  # nobody has touched it
        client.send_signal(signal.SIGCONT)
        assert client.stdout is not None
        late = int(client.stdout.read())
    site.done(late)
    site.verdict(others=[late])


def wait_until_idle(site: Site) -> None:
    """Nobody else is about to write."""
    wait_for(lambda: [worker.state for worker in site.workers()] == [State.IDLE] * 2, "both workers")


@contextlib.contextmanager
def blocked(site: Site) -> Iterator[None]:
    """An application is in a write transaction all the time."""
    with contextlib.closing(sqlite3.connect(site.database, timeout=30, isolation_level=None)) as application:
        application.execute("BEGIN IMMEDIATE")
        yield
        application.execute("COMMIT")


def stop_holder(site: Site, wanted: Callable[[int], bool], then: Callable[[], None] = lambda: None) -> int:
    """Stop a process of those wanted in the moment in which it holds our writers' lock; returns its pid.

    It holds that while it waits for a transaction of an application's to end, in which we do what is to be done `then`.
    """
    with blocked(site):
        then()
        pid = wait_for(lambda: next(filter(wanted, holders(site)), 0), "the right one to hold the lock")
        os.kill(pid, signal.SIGSTOP)
    return pid


def holders(site: Site) -> list[int]:
    """Who holds the writers' lock, as the kernel tells."""
    inode = (site.database.with_name(f"{site.database.name}-supervisor") / "write.lock").stat().st_ino
    rows = [line.split() for line in Path("/proc/locks").read_text(encoding="ascii").splitlines()]
    return [int(row[4]) for row in rows if row[1] == "FLOCK" and row[5].endswith(f":{inode}")]


def maintainer(board: Path) -> int:
    found = Scoreboard.open(board)
    assert found is not None
    return int(found.supervisor_status().get("maintainer") or 0)


@pytest.mark.sqlite
@pytest.mark.fault(22)
def test_a_log_that_a_reader_keeps_from_being_emptied_raises_an_alarm_and_is_cut_afterwards(
    make_site: MakeSite,
) -> None:
    """The alarm is about bytes, so what minutes of work would write is written at once."""
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n')
    log = Path(f"{site.database}-wal")
    site.start()
    with contextlib.closing(sqlite3.connect(site.database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM jobs").fetchone()
        write_much(site)
        jobs = site.queue.enqueue_many("work", [{}] * 50)
        for job in jobs:
            site.done(job)  # nobody is held up meanwhile
        alarm = wait_for(lambda: site.event("log_grows"), "the alarm")
        assert alarm["bytes"] > ALARM
        assert "read transaction" in alarm["hint"]
        assert reader.execute("SELECT count(*) FROM jobs").fetchone() == seen
        reader.execute("COMMIT")
    wait_for(lambda: site.event("log_truncated"), "the log to be cut", 30)
    assert log.stat().st_size < 1 << 20
    assert [event["event"] for event in site.events()].count("log_grows") == 1
    jobs.append(site.queue.enqueue("work"))
    site.done(jobs[-1])
    site.verdict()


def write_much(site: Site) -> None:
    """One transaction of the application's that is larger than the log may be."""
    with contextlib.closing(sqlite3.connect(site.database, timeout=30, isolation_level=None)) as application:
        application.execute("PRAGMA synchronous = OFF")  # nothing is promised of this one
        application.execute("CREATE TABLE pictures (picture BLOB)")
        application.execute("INSERT INTO pictures VALUES (zeroblob(?))", [ALARM])
