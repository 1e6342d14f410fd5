"""Several hosts on one server: whichever dies or is cut off, its jobs run elsewhere, and each ends once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from supervisor.system.scoreboard import Scoreboard
from tests import another_host
from tests.faults.shifted_clock import Clock
from tests.faults.surroundings import stays
from tests.network import Island
from tests.postgres_proxy import Proxy
from tests.postgres_server import Databases, Server
from tests.site_under_test import Site, wait_for

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\nlock_time = "10m"\n'
ELSEWHERE = 20.0  # seconds within which the jobs of a host that is gone run on another one
LEASE = 15.0  # seconds
PATIENCE = 60.0  # seconds, of a test where the machine is busy

Process = subprocess.Popen[bytes]


class Hosts:
    """An installation on several hosts: each has its own folders and boot, and perhaps its own way to the server."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self._folder = folder

    def start(
        self,
        name: str,
        *arguments: str,
        url: str = "",
        wait: bool = True,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = (),
    ) -> Process:
        """`program` runs the command."""
        own = {"STATE_DIRECTORY": str(self.folder(name)), "RUNTIME_DIRECTORY": str(self.folder(name))}
        where = ("--database", url) if url else ()
        program = (*program, sys.executable, "-P", another_host.__file__, f"boot-of-{name}")
        environment = {**os.environ, **own, "SUPERVISOR_HOST": name, **(env or {})}
        return self.site.start(*where, *arguments, env=environment, program=program, wait=wait)

    def folder(self, name: str) -> Path:
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def board(self, name: str) -> Scoreboard:
        """The scoreboard of the one supervisor that has been started there."""
        [path] = [path for path in self.folder(name).glob("scoreboard-*") if not path.suffix]
        board = Scoreboard.open(path)
        assert board is not None
        return board

    def kill(self, host: Process) -> float:
        """All its processes at once. Returns when, in Unix seconds."""
        at = time.time()
        for pid in [host.pid, *self.site.survivors(host)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        host.wait()
        return at

    def runs_again(self, job: int, since: float) -> float:
        """Waits until it has. Returns how many seconds after that."""
        runs = wait_for(lambda: len(found := self.site.runs("start", job)) > 1 and found, "its second run", PATIENCE)
        return runs[1][2] - since

    def settled(self, *jobs: int) -> None:
        """Waits until all have ended; `verdict` is less patient."""
        for job in jobs:
            self.site.done(job, PATIENCE)


@pytest.fixture
def make_hosts(
    postgres: Databases, make_site: Callable[..., Site], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Hosts]:
    """Made from the text of its pools."""
    return lambda config=POOL: Hosts(make_site(config, url=postgres.fresh_database()), tmp_path_factory.mktemp("hosts"))


def test_the_jobs_of_a_killed_host_run_on_another_one_within_20_seconds(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts()
    site = hosts.site
    first = hosts.start("one")
    jobs, gate = site.held(count=2)
    for job in jobs:
        site.running_pid(job)
    hosts.start("two")
    others = [site.queue.enqueue("work") for _ in range(5)]
    hosts.settled(*others)  # while all workers of the first are busy
    killed = hosts.kill(first)
    gate.touch()
    assert max(hosts.runs_again(job, killed) for job in jobs) < ELSEWHERE
    hosts.settled(*jobs)
    site.verdict(hit=jobs)
    wait_for(lambda: site.rows("SELECT count(*) FROM job_supervisors") == [(1,)], "the dead one to be forgotten")
    told = site.command("status").stdout
    assert f"supervisor {first.pid} on one ended unexpectedly" in " ".join(told.split())
    assert re.search(rf"one +{first.pid} +\S+ ago +ended", told)


def test_a_host_that_is_cut_off_claims_nothing_and_resumes_by_itself(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts()
    site = hosts.site
    with Proxy(site.url) as proxy:
        first = hosts.start("one", url=proxy.url(site.url))
        jobs, gate = site.held(count=2)
        for job in jobs:
            site.running_pid(job)
        hosts.start("two")
        proxy.black_hole()
        cut = time.time()
        board = hosts.board("one")
        wait_for(lambda: board.gate.lapsed, "the lease to end here", PATIENCE)
        ended_here = time.time() - cut
        assert max(hosts.runs_again(job, cut) for job in jobs) < ELSEWHERE
        assert ended_here < LEASE
        gate.touch()
        hosts.settled(*jobs)
        proxy.heal()
        wait_for(lambda: board.gate.is_open(), "the lease to be renewed", PATIENCE)
        later = [site.queue.enqueue("work", {"seconds": 0.5}) for _ in range(8)]
        hosts.settled(*later)
        workers = {worker.pid for worker in (board.slot(number).read() for number in range(1, board.highest + 1))}
        assert workers & {site.runs("start", job)[0][1] for job in later}
        wait_for(lambda: site.rows("SELECT count(*) FROM job_workers") == [(4,)], "its workers to register again")
        site.verdict(hit=jobs)
        assert site.stop(first) == 0


@pytest.mark.long
def test_on_partition_stop_ends_what_runs(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(f'on_partition = "stop"\n{POOL}')
    site = hosts.site
    with Proxy(site.url) as proxy:
        first = hosts.start("one", url=proxy.url(site.url))
        job = site.queue.enqueue("work", {"seconds": 600})
        pid = site.running_pid(job)
        proxy.black_hole()
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), "its end", PATIENCE)
        proxy.heal()
        assert hosts.runs_again(job, 0.0)  # nobody else took it over, and no attempt is charged
        assert site.job(job).crashes == 0
        site.queue.cancel(job)
        wait_for(lambda: site.job(job).status.finished, "its end")
        site.verdict(hit=[job], cancelled=[job])
        assert site.stop(first) == 0


def test_a_drained_host_finishes_what_runs_and_claims_nothing(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts()
    site = hosts.site
    first = hosts.start("one", "--drain-then-exit")
    [job], gate = site.held()
    site.running_pid(job)
    hosts.start("two")
    site.command("drain", "one")
    assert (
        "no supervisor runs on the host 'three'; supervisors run on one, two"
        in site.command("drain", "three", code=2).stderr
    )
    wait_for(lambda: hosts.board("one").gate.drained, "it to be drained")
    others = [site.queue.enqueue("work", {"seconds": 0.1}) for _ in range(8)]
    hosts.settled(*others)
    own = {worker.pid for worker in (hosts.board("one").slot(number).read() for number in (1, 2))}
    assert not own & {site.runs("start", other)[0][1] for other in others}
    seen = json.loads(site.command("status", "--json").stdout)
    assert {one["host"]: one["drained"] for one in seen["supervisors"]} == {"one": True, "two": False}
    assert [pool["why"] for pool in seen["pools"] if pool["host"] == "one"] == ["drained"]
    assert re.search(r"claimed by +work-\d on one ", site.command("jobs", "show", str(job)).stdout)
    assert json.loads(site.command("jobs", "show", str(job), "--json").stdout)["host"] == "one"
    gate.touch()
    hosts.settled(job)
    assert first.wait(PATIENCE) == 0  # it was to exit then
    site.command("undrain", "one")
    again = hosts.start("one")
    wait_for(lambda: hosts.board("one").gate.is_open(), "it may claim again")
    site.verdict()
    assert site.stop(again) == 0


def test_a_pool_is_scaled_on_one_host_alone_also_after_its_restart(
    make_hosts: Callable[..., Hosts],
) -> None:
    hosts = make_hosts(POOL + '[pools.other]\nhandler = "jobs:work"\nworkers = 1\nhosts = ["two"]\n')
    site = hosts.site
    first, _ = hosts.start("one"), hosts.start("two")

    def shown() -> dict[str, int]:
        seen = json.loads(site.command("status", "--json").stdout)
        return {pool["host"]: pool["size"] for pool in seen["pools"] if pool["name"] == "work"}

    assert site.command("scale", "work", "4", "--host", "tw*").stdout == "pool work now has 4 workers on tw*\n"
    wait_for(lambda: shown() == {"one": 2, "two": 4}, "the size to hold", PATIENCE)

    told = site.command("scale", "work", "1", "--host", "three", code=2).stderr
    assert "no supervisor runs on the host 'three'; supervisors run on one, two" in told
    told = site.command("scale", "other", "1", "--host", "one", code=2).stderr
    assert "the pool 'other' does not run on one; the pools there are work" in told

    assert site.stop(first) == 0
    first = hosts.start("one")
    wait_for(lambda: shown() == {"one": 2, "two": 4}, "the size to hold again", PATIENCE)

    assert "is sized by the configuration again on tw*" in site.command("scale", "work", "auto", "--host", "tw*").stdout
    wait_for(lambda: shown() == {"one": 2, "two": 2}, "the size of before", PATIENCE)
    site.verdict()
    assert site.stop(first) == 0


@pytest.mark.long
def test_status_shows_all_hosts_and_a_pool_runs_where_it_is_meant_to(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts(POOL.replace("workers", 'hosts = ["gpu-*"]\nworkers', 1) + POOL.replace("work]", "other]"))
    site = hosts.site
    for name in ("gpu-1", "web-1"):
        hosts.start(name)
    job = site.queue.enqueue("work", {"seconds": 60})
    site.running_pid(job)
    [board] = [path for path in hosts.folder("gpu-1").glob("scoreboard-*") if not path.suffix]
    board.rename(board.with_name("on-another-machine"))  # nobody here can read it

    def shown() -> set[tuple[str, str, int | None]]:
        seen = json.loads(site.command("status", "--json").stdout)
        return {(worker["host"], worker["pool"], worker["job"]) for worker in seen["workers"]}

    idle = {("gpu-1", "other", None), ("web-1", "other", None), ("gpu-1", "work", None)}
    wait_for(lambda: shown() == idle | {("gpu-1", "work", job)}, "what other hosts post")
    seen = json.loads(site.command("status", "--json").stdout)
    assert all(0 < one["lease_left"] <= LEASE and one["visible"] for one in seen["supervisors"])
    assert seen["unhandled"] == ["never"]
    assert "gpu-1" in site.command("status").stdout
    warned = {type_ for event in site.events() for type_ in event.get("types", ())}
    assert warned == {"never"}
    assert "work runs on gpu-*, not on this host" in site.command("check").stdout
    refused = hosts.start("web-2", "--pool", "work", wait=False)
    assert refused.wait(PATIENCE) == 2
    site.queue.cancel(job)
    site.command("drain", "gpu-1", "--wait")
    assert site.job(job).status.finished
    hidden = Scoreboard.open(board.with_name("on-another-machine"))
    assert hidden is not None
    assert hidden.gate.drained
    site.verdict(hit=[job], cancelled=[job])


@pytest.mark.long
@pytest.mark.parametrize(
    ("seconds", "directions"),
    [(16, {}), (5, {}), (14, {}), (60, {}), (16, {"to_island": False}), (16, {"to_home": False})],
)
def test_a_host_that_is_really_cut_off_loses_nothing_and_repeats_nothing_that_is_recorded(
    own_postgres: Callable[..., Server],
    make_site: Callable[..., Site],
    tmp_path_factory: pytest.TempPathFactory,
    seconds: int,
    directions: dict[str, bool],
) -> None:
    with Island() as island:
        server = own_postgres(listen_addresses="*")
        with (server.folder / "data" / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {island.home}/8 scram-sha-256\n")
        server.restart()
        url = server.fresh_database()
        hosts = Hosts(make_site(POOL, url=url), tmp_path_factory.mktemp("hosts"))
        site = hosts.site
        own = island.program
        first = hosts.start("one", url=url.replace("127.0.0.1", island.home), program=own)
        long = [site.queue.enqueue("work", {"seconds": seconds + 5.0}) for _ in range(2)]
        for job in long:
            site.running_pid(job)
        second = hosts.start("two")
        others = [site.queue.enqueue("work", {"seconds": 0.2}) for _ in range(30)]
        wait_for(lambda: site.count("done") > 2, "some to be done")
        island.cut(**directions)
        cut = time.time()
        time.sleep(seconds)
        island.heal()
        hosts.settled(*long, *others)
        again = [runs[1][2] - cut for job in long if len(runs := site.runs("start", job)) > 1]
        assert all(took < ELSEWHERE for took in again)
        if not LEASE - 5 <= seconds <= LEASE:  # between these it depends on when it was renewed last
            assert len(again) == (2 if seconds > LEASE else 0)
        wait_for(lambda: hosts.board("one").gate.is_open(), "the lease to be renewed", PATIENCE)
        site.verdict(hit=[*long, *others])
        for host in (first, second):
            assert site.stop(host) == 0


@pytest.mark.long
@pytest.mark.parametrize("ahead", [-60, 60])
def test_the_clock_of_a_host_may_be_wrong_by_a_minute(
    make_hosts: Callable[..., Hosts], tmp_path: Path, ahead: int
) -> None:
    hosts = make_hosts(POOL.replace("10m", "5s"))
    site = hosts.site
    clock = Clock(tmp_path)
    clock.leap_to(ahead)
    hosts.start("one", env=clock.environment)
    job = site.queue.enqueue("work", {"seconds": 0.05})
    hosts.settled(job)  # a clock that is behind would find that it is not due yet
    later = site.queue.enqueue("work", delay="5s")
    long = site.queue.enqueue("work", {"seconds": 8})
    site.running_pid(long)
    hosts.start("two")  # it must not take the locks of the other for expired ones
    hosts.settled(later, long)
    told = " ".join(site.command("doctor", code=None).stdout.split())
    assert re.search(f"the clock of one is (59|60|61) s {'ahead of' if ahead > 0 else 'behind'} the server's", told)
    assert "the clock of this host" not in told
    for one in (job, later, long):
        [(created, due, began, ended)] = site.rows(
            "SELECT created_at, scheduled_at, started_at, completed_at FROM jobs WHERE id = ?", one
        )
        assert created <= due <= began + 0.1
        assert began <= ended < created + 30
    site.verdict()


@pytest.mark.long
def test_of_three_hosts_two_may_die(make_hosts: Callable[..., Hosts]) -> None:
    hosts = make_hosts()
    site = hosts.site
    first, second, _ = (hosts.start(name) for name in ("one", "two", "three"))
    jobs = [site.queue.enqueue("work", {"seconds": 0.5}) for _ in range(150)]
    wait_for(lambda: site.count("done") > 20, "some to be done", PATIENCE)
    hosts.kill(first)
    wait_for(lambda: site.count("done") > 50, "more to be done", PATIENCE)
    hosts.kill(second)
    hosts.settled(*jobs)
    site.verdict(hit=jobs)
    assert sum(site.job(job).crashes for job in jobs) <= 4  # one for each worker that died
    wait_for(lambda: site.rows("SELECT count(*) FROM job_supervisors") == [(1,)], "them to be forgotten", PATIENCE)


def test_the_only_host_of_a_file_can_be_drained_and_scaled_too(make_site: Callable[..., Site]) -> None:
    site, here = make_site(POOL), socket.gethostname()
    site.queue.enqueue("work")
    site.command("drain", "--force")
    site.command("scale", "work", "3", "--host", here)
    supervisor = site.start()
    wait_for(lambda: len(site.workers("work")) == 3, "three workers")
    told = site.command("scale", "work", "2", "--host", "elsewhere", code=2).stderr
    assert f"no supervisor runs on the host 'elsewhere'; supervisors run on {here}" in told
    assert "drained" in site.command("status").stdout
    job = site.queue.enqueue("work")
    stays(lambda: not site.runs("start", job), 1.0)
    site.command("undrain")
    site.done(job)
    site.command("drain", "--wait")
    burst = site.start("--burst", wait=False)
    assert burst.wait(PATIENCE) == 0  # nothing would ever end it
    site.command("undrain")
    site.verdict()
    assert site.stop(supervisor) == 0
