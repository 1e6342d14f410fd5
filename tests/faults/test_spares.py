"""Workers that are set up and idle take over when another one ends. Never more run jobs than the pool's size allows."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from supervisor import Status
from supervisor.system.slot import State
from tests.samples import sampled
from tests.site_under_test import MakeSite, Site, alive, descendants, kill, wait_for
from tests.stopwatch import Stopwatch

# Whoever runs a job holds a lock, also for the processes that it starts, and tells if it could not have it.
JOBS = """
import fcntl, hashlib, os, subprocess, time
from ledger import record

class Model:
    def setup(self, ctx):
        time.sleep(float(os.environ["SET_UP"]))

    def handle(self, payload, ctx):
        alone = open("alone", "a")
        try:
            fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            open("together", "a").write(f"job {ctx.job_id} in {os.getpid()}\\n")
        record("start", ctx)
        if payload.get("children") and ctx.token == 1:
            subprocess.Popen(["sleep", "60"], pass_fds=[alone.fileno()], start_new_session=True)
        if payload.get("native") == "released":
            hashlib.pbkdf2_hmac("sha256", b"x", b"y", 2_000_000_000)
        elif payload.get("native") == "held":
            sum(range(10**12))  # keeps the interpreter's lock, and looks at no signal
        elif ctx.token == 1 or payload.get("always"):
            time.sleep(payload.get("seconds", 0))
        record("end", ctx)
        return {"pid": os.getpid(), "version": VERSION}

VERSION = 1
"""
POOL = """
[pools.model]
handler = "jobs:Model"
workers = 1
spares = 1
cancel_grace = "0s"
kill_grace = "200ms"
{more}
env = {{ SET_UP = "{set_up}" }}
"""
SET_UP = 4.0  # seconds


def made(make_site: MakeSite, set_up: float = SET_UP, more: str = "", **of_pool: str) -> Site:
    config = POOL.format(set_up=set_up, more=more)
    for old, new in of_pool.items():
        config = config.replace(old.replace("_", " = "), new)
    return make_site(config, JOBS)


def spares(site: Site) -> list[Any]:
    """The slots of the spares that are set up."""
    return [slot for slot in every(site) if slot.state is State.SPARE]


def every(site: Site) -> list[Any]:
    from supervisor.system.scoreboard import Scoreboard

    boards = [board for path in site.scoreboards() if (board := Scoreboard.open(path)) is not None]
    return [slot for board in boards for n in range(1, board.highest + 1) if (slot := board.slot(n).read()).pid]


def ready(site: Site, count: int = 1, patience: float = 60.0) -> list[Any]:
    return wait_for(lambda: len(found := spares(site)) == count and found, f"{count} spares", patience)


def alone(site: Site) -> bool:
    return not (site.folder / "together").exists()


def started(site: Site, job: int) -> float:
    """When the first run of a job began, in Unix seconds."""
    return wait_for(lambda: site.runs("start", job), f"job {job} to start", 60.0)[0][2]


def end_by(site: Site, how: str) -> tuple[int, float]:
    """Have a job run, another one wait, and end the first one's worker. Returns the first job, and after how many
    seconds the other one began.
    """
    native = how.partition(" ")[2]
    payload = {"native": native} if native else {"seconds": 60}
    first = site.queue.enqueue("model", payload)
    pid = site.running_pid(first)
    second = site.queue.enqueue("model", {})
    watch = Stopwatch()
    if how == "kill":
        at = kill(pid)
    elif how.startswith("cancel"):
        at = time.time()
        site.queue.cancel(first)
    else:
        at = started(site, first) + 1.0  # its time limit
    return first, watch.seconds(started(site, second) - at)


# A death, an exception that is raised in time, and a kill by the supervisor; then those that end like one of these.
WAYS = ("kill", "timeout", "cancel held", "cancel", "cancel released", "timeout held")


@pytest.mark.fault(97)
@pytest.mark.parametrize("how", sampled(WAYS, quick=3))
def test_the_next_job_does_not_wait_for_a_set_up(make_site: MakeSite, how: str) -> None:
    limit = 'timeout = "1s"\nretry = { max_attempts = 1 }' if how.startswith("timeout") else ""
    site = made(make_site, more=limit)
    site.start()
    ready(site)
    hit, seconds = end_by(site, how)
    assert seconds < SET_UP / 2, f"{how}: {seconds:.3f} s"
    status = {"kill": "done", "cancel": "cancelled"}.get(how.split()[0], "failed")
    ended = {} if status == "done" else {status: [hit]}
    site.verdict(hit=[hit], **ended)
    assert alone(site)


@pytest.mark.fault(97)
def test_what_a_killed_worker_has_started_ends_before_a_spare_takes_over(make_site: MakeSite) -> None:
    site = made(make_site, 0.5)
    site.start()
    for _ in range(5):
        ready(site)
        first = site.queue.enqueue("model", {"children": True, "seconds": 60})
        pid = site.running_pid(first)
        second = site.queue.enqueue("model", {})
        kill(pid)
        site.done(first)
        site.done(second)
        assert alone(site), (site.folder / "together").read_text()


@pytest.mark.fault(97)
def test_a_killed_spare_is_replaced_and_costs_no_job_anything(make_site: MakeSite) -> None:
    site = made(make_site, 0.5)
    supervisor = site.start()
    for _ in range(3):
        job = site.queue.enqueue("model", {"seconds": 1})
        [spare] = ready(site)
        kill(spare.pid)
        wait_for(lambda gone=spare.pid: [one for one in spares(site) if one.pid != gone], "another spare")
        site.done(job)
    sizes = {"size": 1, "target": 1, "spares": 1, "spares_wanted": 1}
    wait_for(lambda: sizes.items() <= site.supervisor_status(supervisor)["pools"]["model"].items(), "all to be well")
    site.verdict()
    assert alone(site)


@pytest.mark.fault(97)
def test_never_do_two_jobs_run_at_once_whoever_is_killed_when(make_site: MakeSite) -> None:
    site = made(make_site, 0.3, "max_crashes = 1000", spares_1="spares = 2")
    supervisor = site.start()
    jobs = [site.queue.enqueue("model", {"seconds": 0.02, "always": True}) for _ in range(400)]
    for turn in range(12):
        wait_for(lambda: any(slot.job for slot in every(site)), "a job")
        busy = [slot.pid for slot in every(site) if slot.job]
        idle = [slot.pid for slot in spares(site)]
        templates = site.supervisor_status(supervisor)["templates"] if turn % 4 == 3 else []
        for pid in [*busy, *idle[: turn % 2], *templates]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if turn % 6 == 5:
            kill(supervisor.pid)
            supervisor.wait()
            supervisor = site.start()
        time.sleep(0.1 * (turn % 3))
    site.verdict(hit=jobs)
    assert alone(site), (site.folder / "together").read_text()


@pytest.mark.fault(97)
def test_a_supervisor_that_is_killed_while_a_spare_takes_over_leaves_nobody(make_site: MakeSite) -> None:
    site = made(make_site, 0.3)
    for _ in range(4):
        supervisor = site.start()
        ready(site)
        job = site.queue.enqueue("model", {"seconds": 60})
        children = descendants(supervisor.pid)
        os.kill(site.running_pid(job), signal.SIGKILL)
        os.kill(supervisor.pid, signal.SIGKILL)
        supervisor.wait()
        wait_for(lambda gone=children: not any(map(alive, gone)), "all of them to end")
    site.start()
    site.verdict(hit=site.queue.acknowledged)
    assert alone(site)


def test_a_reload_replaces_spares_and_workers_and_never_are_two_at_work(make_site: MakeSite) -> None:
    site = made(make_site, 0.3)
    supervisor = site.start()
    ready(site)
    old = {slot.pid for slot in every(site)}
    jobs = [site.queue.enqueue("model", {"seconds": 0.05}) for _ in range(30)]
    (site.folder / "jobs.py").write_text((site.folder / "jobs.py").read_text().replace("VERSION = 1", "VERSION = 22"))
    assert site.command("reload", "--wait").returncode == 0
    wait_for(lambda: not {slot.pid for slot in every(site)} & old, "the old ones to leave")
    ready(site)
    assert site.done(site.queue.enqueue("model")).result["version"] == 22
    site.verdict()
    assert {site.job(job).status for job in jobs} == {Status.DONE}
    assert alone(site)
    pool = site.supervisor_status(supervisor)["pools"]["model"]
    assert not pool["problem"]


def test_a_pool_at_zero_keeps_no_spare(make_site: MakeSite) -> None:
    size = 'min_workers = 0\nmax_workers = 1\nscale_down_delay = "200ms"'
    site = made(make_site, 0.1, workers_1=size)
    site.start()
    site.done(site.queue.enqueue("model"))
    wait_for(lambda: not every(site), "nobody to be left")
    job = site.queue.enqueue("model", {"seconds": 1})
    site.running_pid(job)
    ready(site)
    site.done(job)
    wait_for(lambda: not every(site), "nobody to be left")
    site.verdict()


def test_an_operator_sets_the_number_of_those_that_run_jobs(make_site: MakeSite) -> None:
    site = made(make_site, 0.1, workers_1="workers = 3")
    site.start()
    ready(site)
    for size in (1, 0, 2):
        site.command("scale", "model", str(size))
        spare = 1 if size else 0
        wait_for(lambda n=size, s=spare: (len(every(site)) - len(spares(site)), len(spares(site))) == (n, s), str(size))
    site.command("scale", "model", "auto")
    wait_for(lambda: (len(every(site)), len(spares(site))) == (4, 1), "the configured size")


@pytest.mark.parametrize(
    "config",
    sampled(
        [
            'handler = "jobs:Model"\nconcurrency = 4',
            'handler = "jobs:Model"\npreload_setup = true',
            'command = ["python3", "-m", "job_handler", "jobs:simple"]',
            'handler = "jobs:Model"\nstart = "spawn"',
        ],
        quick=3,
    ),
)
def test_every_kind_of_worker_can_be_a_spare(make_site: MakeSite, config: str) -> None:
    jobs = JOBS + "\ndef simple(payload, ctx):\n    return {'pid': os.getpid(), 'version': VERSION}\n"
    text = POOL.format(set_up=0.1, more="").replace('handler = "jobs:Model"', config)
    site = make_site(text, jobs)
    site.start()
    for _ in range(2):
        ready(site)
        site.queue.wait(site.queue.enqueue("model"), timeout=20)
        [worker] = [slot.pid for slot in every(site) if slot.state not in (State.SPARE, State.STARTING)]
        kill(worker)
        wait_for(lambda gone=worker: gone not in {slot.pid for slot in every(site)}, "its end")
    last = site.queue.enqueue("model")
    assert site.queue.wait(last, timeout=20).status is Status.DONE


def test_a_burst_keeps_no_spares(make_site: MakeSite) -> None:
    site = made(make_site, 0.1)
    site.queue.enqueue("model")
    process = site.start("--burst", wait=False)
    assert process.wait(30) == 0
    assert len([e for e in site.events() if e.get("event") == "worker_left"]) == 1
