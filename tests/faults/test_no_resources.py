"""No process and no descriptor can be had any more: nothing is claimed for nobody, and all goes on when they can."""

from __future__ import annotations

import contextlib
import json
import resource
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.faults.cgroups import Cgroup, cgroup
from tests.faults.surroundings import GATED, command, stays
from tests.site_under_test import MakeSite, Site, kill, wait_for

POOL = """
[pools.work]
handler = "jobs:gated"
workers = 1
"""


@pytest.fixture
def narrow() -> Iterator[Cgroup]:
    """Room for any number of processes, until the test says otherwise."""
    with cgroup("pids") as group:
        yield group


@pytest.mark.fault(30)
def test_without_processes_nothing_is_claimed_for_nobody_and_forks_are_tried_ever_more_rarely(
    narrow: Cgroup, make_site: MakeSite
) -> None:
    site = make_site(POOL, GATED)
    supervisor = site.start(preexec_fn=narrow.join)
    gate = site.folder / "gate"
    first = site.queue.enqueue("work", {"gate": str(gate)})
    pid = site.running_pid(first)
    jobs = site.queue.enqueue_many("work", [{"gate": str(gate)}] * 20)
    narrow.limit(1)
    command(site, "scale", "work", "4")
    refused = wait_for(lambda: site.event("pool_broken"), "a fork to fail")
    assert refused["problem"] == "no worker can be forked: Resource temporarily unavailable"
    wait_for(lambda: "BROKEN: no worker can be forked" in command(site, "status"), "status to say so")
    assert site.rows("SELECT count(*) FROM jobs WHERE status = 'running'") == [(1,)]
    kill(pid)
    wait_for(lambda: site.job(first).crashes == 1, "its death to be settled")
    stays(lambda: site.count("running") == 0, 2.0)
    tries = [event for event in site.events() if event["event"] == "pool_broken"]
    assert len(tries) <= 4  # after 1, 2 and 4 seconds
    narrow.limit("max")
    gate.touch()
    for job in [first, *jobs]:
        site.done(job, patience=30)
    site.verdict(hit=[first])
    assert [site.job(job).crashes for job in jobs] == [0] * 20
    assert supervisor.poll() is None


@pytest.mark.fault(30)
def test_a_template_and_a_maintainer_that_cannot_be_forked_are_tried_again(narrow: Cgroup, make_site: MakeSite) -> None:
    site = make_site(POOL, GATED)
    supervisor = site.start(preexec_fn=narrow.join)
    site.done(site.queue.enqueue("work"))
    [board] = site.scoreboards()
    maintainer, template = children(supervisor.pid, site)
    narrow.limit(1)
    template.kill()
    maintainer.kill()
    wait_for(lambda: site.event("fork_failed", of="maintainer"), "the maintainer")
    problem = "no template can be forked: Resource temporarily unavailable"
    wait_for(lambda: site.event("pool_broken", problem=problem), "the template")
    jobs = site.queue.enqueue_many("work", [{}] * 5)
    narrow.limit("max")
    for job in jobs:
        site.done(job, patience=30)
    site.verdict()
    assert board in site.scoreboards()
    assert site.stop(supervisor) == 0


@pytest.mark.fault(30)
@pytest.mark.parametrize(
    ("who", "problem"),
    [
        ("supervisor", "no worker can be watched: Too many open files"),
        ("template", "no worker can be forked: Too many open files"),
    ],
)
def test_without_descriptors_no_worker_is_added_and_nobody_dies(make_site: MakeSite, who: str, problem: str) -> None:
    site = make_site(POOL, GATED)
    supervisor = site.start()
    gate = site.folder / "gate"
    first = site.queue.enqueue("work", {"gate": str(gate)})
    pid = site.running_pid(first)
    _, template = children(supervisor.pid, site)
    with no_more_files(supervisor.pid if who == "supervisor" else template.pid):
        jobs = site.queue.enqueue_many("work", [{"gate": str(gate)}] * 20)
        command(site, "scale", "work", "4")
        wait_for(lambda: site.event("pool_broken", problem=problem), problem)
        wait_for(lambda: [worker.pid for worker in site.workers()] == [pid], "the first worker to be alone")
        assert site.rows("SELECT id FROM jobs WHERE status = 'running'") == [(first,)]
        assert len([event for event in site.events() if event["event"] == "pool_broken"]) <= 3
    gate.touch()
    for job in [first, *jobs]:
        site.done(job, patience=30)
    site.verdict()
    assert {site.job(job).crashes for job in jobs} == {0}
    assert not site.event("template_died")
    assert site.stop(supervisor) == 0


def children(supervisor: int, site: Site) -> tuple[psutil.Process, psutil.Process]:
    """The maintainer and the template."""
    shown = json.loads(command(site, "status", "--json"))["supervisors"][0]
    maintainer = psutil.Process(shown["maintainer"])
    [template] = [child for child in psutil.Process(supervisor).children() if child.pid != maintainer.pid]
    return maintainer, template


@contextlib.contextmanager
def no_more_files(pid: int, *, room: int = 0) -> Iterator[None]:
    """A process may open nothing more than it has open, or so many more at a time."""
    used = {int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir()}
    free = [number for number in range(len(used) + 1 + room) if number not in used][room]
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
