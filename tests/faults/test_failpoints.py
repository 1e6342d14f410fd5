"""Fail-points do what they say where they say it: the other tests of this folder rely on them."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.system.failpoints import VARIABLE
from tests.site_under_test import MakeSite, Site

WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'


@pytest.fixture
def site(make_site: MakeSite) -> Site:
    return make_site(WORK)


def supervisor(site: Site, *arguments: str, points: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "supervisor", *arguments],
        env=os.environ | {VARIABLE: points},
        cwd=site.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def stopped(process: subprocess.Popen[str]) -> None:
    """Wait until it has stopped itself, as its parent is told."""
    pid, status = os.waitpid(process.pid, os.WUNTRACED)
    assert (pid, os.WIFSTOPPED(status)) == (process.pid, True), process.stderr.read() if process.stderr else ""


@pytest.mark.parametrize(
    ("place", "locked", "visible"),
    [("insert_job.before", True, 0), ("insert_job", True, 0), ("insert_job.committed", False, 1)],
)
def test_a_statement_has_a_place_before_it_after_it_and_after_its_commit(
    site: Site, place: str, locked: bool, visible: int
) -> None:
    process = supervisor(site, "enqueue", "work", points=f"program:{place}=stop")
    stopped(process)
    with contextlib.closing(sqlite3.connect(site.database, timeout=0, isolation_level=None)) as other:
        assert other.execute("SELECT count(*) FROM jobs WHERE type = 'work'").fetchone() == (visible,)
        try:
            other.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            assert locked
        else:
            assert not locked
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=20)[0] == "2\n"


def test_an_action_happens_at_its_time_of_passing_in_its_role_and_once_for_all_processes(site: Site) -> None:
    site.configure(WORK + "prefetch = 1\n")
    jobs = site.queue.enqueue_many("work", [{}] * 7)
    points = ["worker:claim_one=kill@3", "maintainer:claim_one=kill"]
    site.start(env=site.failpoints(*points))
    pid = site.hit(points[0])
    site.verdict(hit=[jobs[1]])  # whose settlement was part of the transaction of the third claim
    assert [job for job in jobs if site.runs("start", job)[0][1] == pid] == jobs[:2]
    assert len({site.runs("end", job)[-1][1] for job in jobs}) == 2  # the next worker was not killed at its third
    assert [path.name for path in site.once.iterdir()] == [points[0]]


def test_without_the_variable_connections_are_the_drivers_own(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom supervisor import Queue\n"
        f"queue = Queue('sqlite:///{tmp_path}/jobs.db')\nqueue.enqueue('tag')\n"
        "raw = queue._connections.store(queue._connections.writer)._connection.raw\n"
        "print(type(raw).__name__, 'supervisor.system.failpoints' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, check=True)
    assert ended.stdout == "Connection False\n"
