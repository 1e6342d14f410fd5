"""The database is damaged, read-only, removed, replaced, restored from a backup, or on a network file system."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from supervisor import StoreError
from tests.faults.surroundings import GATED, command, stays
from tests.site_under_test import MakeSite, Site, descendants, wait_for

POOL = """
[pools.work]
handler = "jobs:work"
workers = 2
"""


@contextmanager
def immutable(*files: Path) -> Iterator[None]:
    """The kernel refuses every write to the files, also root's and through what is open already."""
    if shutil.which("chattr") is None:
        pytest.skip("chattr is needed: e2fsprogs, as Debian's package of that name has it")
    try:
        tried = subprocess.run(["chattr", "+i", *files], capture_output=True, text=True, check=False)
        if tried.returncode:
            pytest.skip(f"chattr +i is needed, root's, on a file system that knows it: {tried.stderr}")
        yield
    finally:
        subprocess.run(["chattr", "-i", *files], capture_output=True, check=False)


@pytest.mark.fault(19)
def test_a_database_that_becomes_read_only_is_reported_and_waited_for(make_site_on_disk: MakeSite) -> None:
    site = make_site_on_disk(POOL)
    site.start()
    running = site.queue.enqueue_many("work", [{"seconds": 1}] * 2)
    for job in running:
        site.running_pid(job)
    with immutable(site.database, Path(f"{site.database}-wal")):
        with pytest.raises(StoreError):
            site.queue.enqueue("work")
        wait_for(lambda: all(worker.text for worker in site.workers()), "both workers to give up", 30)
        workers = json.loads(command(site, "status", "--json"))["workers"]
        assert {"disk reports an error" in worker["text"] for worker in workers} == {True}
        assert used_cpu(site, 1.0) < 0.25
        assert [site.job(job).status for job in running] == ["running"] * 2
    waiting = site.queue.enqueue_many("work", [{}] * 10)
    for job in [*running, *waiting]:
        site.done(job)
    site.verdict()


@pytest.mark.fault(19)
def test_a_read_only_database_is_refused_at_the_start(make_site: MakeSite) -> None:
    site = make_site(POOL)
    with immutable(site.database):
        assert "the database is read-only for this user" in command(site, "run", code=3)


@pytest.mark.sqlite
@pytest.mark.fault(19)
def test_a_database_that_is_moved_away_is_not_written_and_used_again_when_it_is_back(make_site: MakeSite) -> None:
    site = make_site(POOL)
    supervisor = site.start()
    jobs = site.queue.enqueue_many("work", [{"seconds": 0.5}] * 2)
    for job in jobs:
        site.running_pid(job)
    moved = move(site, site.folder / "elsewhere")
    before = digest(moved)
    wait_for(lambda: site.event("database_gone", how="removed"), "the supervisor to notice")
    wait_for(lambda: all(site.runs("end", job) for job in jobs), "the handlers to end")
    with pytest.raises(StoreError, match="the database does not exist"):
        site.queue.enqueue("work")
    shown = command(site, "status", code=3)
    assert f"supervisor {supervisor.pid}" in shown
    assert used_cpu(site, 1.0) < 0.25
    stays(lambda: digest(moved) == before, 0.5)
    assert not site.database.exists()
    for file in moved:
        file.rename(site.folder / file.name)
    jobs.append(site.queue.enqueue("work"))
    for job in jobs:
        site.done(job)
    site.verdict()
    assert site.stop(supervisor) == 0


@pytest.mark.sqlite
@pytest.mark.fault(19)
def test_a_supervisor_whose_database_is_replaced_ends_and_its_next_start_takes_the_new_one(make_site: MakeSite) -> None:
    site = make_site(POOL)
    pending = site.queue.enqueue("work")
    command(site, "backup", str(site.folder / "copy.db"))
    supervisor = site.start()
    site.done(pending)
    lost_with_the_file = site.queue.enqueue("work", {"seconds": 60})
    pid = site.running_pid(lost_with_the_file)
    moved = move(site, site.folder / "elsewhere")
    before = digest(moved)
    shutil.copy(site.folder / "copy.db", site.database)
    assert supervisor.wait(20) == 3
    assert site.told("database_gone", how="replaced")
    assert "error: " in site.log.read_text()
    assert not psutil.pid_exists(pid)
    assert digest(moved) == before
    new = site.queue.enqueue("work")  # the queue has found the new file by itself
    site.ledger.unlink()
    site.start()
    for job in (pending, new):
        site.done(job)
    site.verdict()


def move(site: Site, folder: Path) -> list[Path]:
    """Move the database with its log into a folder, as `mv app.db* elsewhere` does."""
    folder.mkdir()
    files = [Path(f"{site.database}{end}") for end in ("", "-wal", "-shm")]
    return [file.rename(folder / file.name) for file in files]


def digest(files: list[Path]) -> list[str]:
    """Of the database and its log; what is mapped is only their index."""
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files if not file.name.endswith("-shm")]


def used_cpu(site: Site, seconds: float) -> float:
    """CPU seconds that the supervisor and all its processes use while we look on."""
    [supervisor] = site.supervisors
    processes = [psutil.Process(supervisor.pid), *descendants(supervisor.pid)]

    def total() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    before = total()
    stays(lambda: supervisor.poll() is None, seconds)
    return total() - before


@pytest.mark.sqlite
@pytest.mark.fault(21)
@pytest.mark.parametrize("what", ["jobs", "jobs_unfinished", "job_workers", "pictures"])
def test_a_damaged_page_is_found_at_the_start_and_the_check_is_named(make_site: MakeSite, what: str) -> None:
    """In the jobs, in their index, in the registry, and in a table that is the application's own."""
    site = make_site(POOL)
    site.rows("CREATE TABLE pictures (path TEXT)")
    site.queue.enqueue_many("work", [{"number": number} for number in range(200)])
    spoil(site, what)
    before = hashlib.sha256(site.database.read_bytes()).digest()
    said = command(site, "run", "--burst", code=3)
    assert said.count("\n") == 1
    assert "the file is damaged, as PRAGMA quick_check found" in said
    assert hashlib.sha256(site.database.read_bytes()).digest() == before
    assert not site.ledger.exists()


@pytest.mark.sqlite
@pytest.mark.fault(21)
def test_a_file_without_its_head_is_refused(make_site: MakeSite) -> None:
    site = make_site(POOL)
    site.queue.close()
    with site.database.open("r+b") as file:
        file.write(os.urandom(100))
    said = command(site, "run", "--burst", code=3)
    assert said.count("\n") == 1
    assert "the file is not an SQLite database" in said


def spoil(site: Site, table: str) -> None:
    """Overwrite the first page of a table or an index, as a bad sector would be read."""
    [(page,)] = site.rows("SELECT rootpage FROM sqlite_schema WHERE name = ?", table)
    [(size,)] = site.rows("PRAGMA page_size")
    site.queue.close()  # nothing is left in the log now
    with site.database.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xaa" * size)


BACKUP_POOL = """
[pools.work]
types = ["work"]
handler = "jobs:gated"
workers = 2
lock_time = "10m"
"""


@pytest.mark.sqlite
@pytest.mark.fault(25)
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_the_jobs_of_an_old_backup_run_again_at_once(make_site: MakeSite, end: signal.Signals) -> None:
    """The owners in it have ended long ago; their locks, which hold for ten minutes, are not waited for."""
    site = make_site(BACKUP_POOL, GATED)
    gate = site.folder / "gate"
    supervisor = site.start()
    before = site.queue.enqueue("work")
    site.done(before)
    running = site.queue.enqueue_many("work", [{"gate": str(gate)}] * 2)
    waiting = site.queue.enqueue_many("work", [{}] * 3)
    for job in running:
        site.running_pid(job)
    command(site, "backup", str(site.folder / "copy.db"))
    known = site.ledger.read_text()
    gate.touch()
    for job in running + waiting:
        site.done(job)
    after = site.queue.enqueue("work")
    site.done(after)
    site.stop(supervisor, end)
    restore(site, site.folder / "copy.db")
    site.ledger.write_text(known)  # what has happened since is forgotten with the file, its claims' tokens too
    site.start()
    for job in running + waiting:
        site.done(job)
    site.verdict(hit=running, gone=[after])
    assert [len(site.runs("start", job)) for job in running + waiting] == [2, 2, 1, 1, 1]
    new = site.queue.enqueue("work")
    site.done(new)


def restore(site: Site, copy: Path) -> None:
    """As deploy/README.md tells it."""
    site.database.rename(site.database.with_suffix(".newer"))
    for end in ("-wal", "-shm"):
        Path(f"{site.database}{end}").unlink(missing_ok=True)
    shutil.copy(copy, site.database)


# tests/cli/test_care.py shows how the kind is found in what the kernel says.
FAR = """
import sys
from supervisor.ops.doctor import machine
machine.kind_of = lambda folder, mounts: "fuse.sshfs"
from supervisor.cli import main
sys.exit(main())
"""


def run(site: Site, *more: str) -> tuple[int, str]:
    """The exit code of a burst on such a disk, and all that it says."""
    words = [sys.executable, "-c", FAR, "run", "--burst", "-c", str(site.config), *more]
    ended = subprocess.run(words, cwd=site.folder, capture_output=True, text=True, check=False, timeout=60)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.sqlite
@pytest.mark.fault(35)
def test_a_network_file_system_under_the_database_is_refused_unless_it_is_insisted_on(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n')
    jobs = site.queue.enqueue_many("work", [{}] * 20)
    code, said = run(site)
    assert (code, said.count("\n")) == (3, 1)
    assert "is on fuse.sshfs, a network file system" in said
    assert "--allow-network-file-system" in said
    assert {site.job(job).attempts for job in jobs} == {0}
    assert not list(site.folder.rglob("owner-*"))
    code, said = run(site, "--allow-network-file-system")
    assert (code, "network_file_system" in said) == (0, True)
    site.verdict()
