"""This release and the next one work on one database, and each may be the one that is restarted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil
import pytest

from tests import another_host, next_release
from tests.site_under_test import Site, wait_for

PATIENCE = 120.0  # seconds
POOL = """
[pools.work]
handler = "jobs:work"
workers = 2
max_crashes = 1000
lock_time = "10m"
"""
HANDLERS = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    time.sleep(payload["seconds"])
    with open("LEDGER-" + os.environ["SUPERVISOR_HOST"], "ab", buffering=0) as own:
        own.write(b".")
    record("end", ctx)
"""
CLIENT = """
import os, sys, time
from supervisor import Queue

url, told, end = sys.argv[1:]
due = time.monotonic()
with Queue(url) as queue, open(told, "a", buffering=1) as file:
    while not os.path.exists(end):
        due = max(due + 0.05, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
        print(queue.enqueue("work", {"seconds": 0.02}), file=file)
"""

Process = subprocess.Popen[bytes]


class Releases:
    """Hosts `old` and `new`, each with its own release of the program, and clients of both."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.site = site
        self._folder = folder
        here = str(Path(__file__).parents[2])
        self._paths = {"old": here, "new": next_release.made(folder / "program")["PYTHONPATH"]}
        self._on_server = isinstance(site.where, str)
        self._clients: list[Process] = []
        self._dice = random.Random(5)
        self.kills = 0
        (folder / "client.py").write_text(CLIENT)

    def command(self, release: str, *words: str, code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "supervisor", *words, "-c", str(self.site.config)],
            cwd=self.site.folder, env=self._environment(release), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done.stdout + done.stderr

    def start(self, release: str) -> Process:
        # On one machine with a file; with a server each has a boot, and folders, of its own.
        host = ("-P", another_host.__file__, f"boot-of-{release}") if self._on_server else ("-m", "supervisor")
        return self.site.start(program=(sys.executable, *host), env=self._environment(release))

    def _environment(self, release: str) -> Mapping[str, str]:
        own = self._folder / release
        own.mkdir(exist_ok=True)
        folders = {"STATE_DIRECTORY": str(own), "RUNTIME_DIRECTORY": str(own)} if self._on_server else {}
        return os.environ | folders | {"PYTHONPATH": self._paths[release], "SUPERVISOR_HOST": release}

    def client(self, release: str) -> None:
        words = [sys.executable, str(self._folder / "client.py"), self.site.url, str(self._told), str(self._end)]
        self._clients.append(subprocess.Popen(words, env=self._environment(release)))

    def work(self, *hosts: Process, by: tuple[str, ...], kill: bool = True) -> None:
        """Until each of these releases has ended forty more jobs; meanwhile workers of these hosts are killed."""
        goal = {release: self._ended(release) + 40 for release in by}
        next_kill = time.monotonic()

        def done() -> bool:
            nonlocal next_kill
            assert all(client.poll() is None for client in self._clients)
            if kill and time.monotonic() > next_kill:
                next_kill = time.monotonic() + 0.5
                for host in hosts:
                    self._kill_worker(host)
            return all(self._ended(release) >= wanted for release, wanted in goal.items())

        wait_for(done, f"{goal} jobs: {[self._ended(release) for release in by]}", PATIENCE)

    def kill(self, host: Process) -> None:
        for pid in [host.pid, *self.site.survivors(host)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        host.wait()

    def finish(self) -> None:
        """Let the clients end, and all jobs be done, and compare."""
        self._end.touch()
        assert [client.wait(PATIENCE) for client in self._clients] == [0] * len(self._clients)
        jobs = [int(line) for line in self._told.read_text().split()]
        wait_for(lambda: self.site.count("done") == len(jobs), "all to be done", PATIENCE)
        self.site.queue.acknowledged.update(jobs)
        self.site.verdict(hit=jobs)
        assert self.site.rows("SELECT count(*) FROM jobs WHERE type = 'work'") == [(len(jobs),)]
        assert self.site.rows("SELECT sum(crashes) FROM jobs")[0][0] <= self.kills

    def close(self) -> None:
        for client in self._clients:
            client.kill()
            client.wait()

    @property
    def _told(self) -> Path:
        return self._folder / "told"

    @property
    def _end(self) -> Path:
        return self._folder / "end"

    def _ended(self, release: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return Path(f"{self.site.ledger}-{release}").stat().st_size
        return 0

    def _kill_worker(self, host: Process) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):
            workers = [worker for template in psutil.Process(host.pid).children() for worker in template.children()]
            self._dice.choice(workers).kill()
            self.kills += 1


@pytest.fixture
def releases(make_site: Callable[..., Site], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Releases]:
    made = Releases(make_site(POOL, HANDLERS), tmp_path_factory.mktemp("hosts"))
    yield made
    made.close()


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.fault(94)
def test_this_release_and_the_next_one_work_side_by_side_whichever_is_restarted(releases: Releases) -> None:
    releases.client("old")
    old = releases.start("old")
    releases.work(old, by=("old",))
    version = len(next_release.plan("sqlite"))
    assert f"applied migrations {version}" in releases.command("new", "migrate")
    releases.client("new")
    releases.work(old, by=("old",))
    new = releases.start("new")
    releases.work(old, new, by=("old", "new"))

    assert releases.site.stop(old) == 0  # the first host is upgraded
    releases.work(new, by=("new",))
    old = releases.start("old")  # and goes back to the old release
    releases.work(old, new, by=("old", "new"))
    assert releases.site.stop(new) == 0  # everything goes back
    releases.work(old, by=("old",))

    new = releases.start("new")
    releases.work(old, new, by=("old", "new"))
    releases.kill(old)
    releases.work(new, by=("new",))
    old = releases.start("old")
    releases.work(old, new, by=("old", "new"))
    releases.kill(new)
    releases.work(old, by=("old",))
    releases.finish()


@pytest.mark.long
@pytest.mark.fault(94)
def test_a_schema_that_contracts_is_refused_by_the_older_release_in_one_sentence(releases: Releases) -> None:
    releases.command("new", "migrate")
    assert "up to date" in releases.command("old", "migrate")
    releases.site.rows("UPDATE job_meta SET value = '99' WHERE key = 'oldest_writer'")
    for words in (("run",), ("status",), ("migrate",)):
        said = releases.command("old", *words, code=3)
        assert "which programs before schema 99 must not write" in said
        assert said.count("\n") == 1
