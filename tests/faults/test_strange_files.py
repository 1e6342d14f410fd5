"""Somebody deletes what running supervisors share, or has put something of his own in its place beforehand."""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

import pytest

from tests import forkserver
from tests.site_under_test import MakeSite, wait_for

WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


@pytest.mark.sqlite
@pytest.mark.fault(62)
@pytest.mark.parametrize("what", ["the folder", "the lock file"])
def test_a_second_supervisor_takes_no_jobs_of_one_whose_files_were_deleted(make_site: MakeSite, what: str) -> None:
    site = make_site(WORK)
    over = site.folder / "over"
    first = site.start()
    job = site.queue.enqueue("work", {"until": str(over)})
    site.running_pid(job)
    folder = site.database.with_name("app.db-supervisor")
    locks = [path.name for path in folder.glob("owner-*.lock")]
    if what == "the folder":
        shutil.rmtree(folder)
    else:
        (folder / locks[0]).unlink()
    site.start()
    wait_for(lambda: set(locks) <= {path.name for path in folder.glob("owner-*.lock")}, "it to be made again")
    second = site.queue.enqueue("work")
    site.done(second)  # by the second one
    time.sleep(1.2)  # the second looks for the dead every second
    over.touch()
    site.verdict()
    assert site.told("owner_lock_made_again", pid_of=first)
    assert not site.event("supervisor_recovered")


@pytest.mark.sqlite
@pytest.mark.fault(62)
def test_a_supervisor_whose_folder_was_deleted_is_recovered_when_it_dies(make_site: MakeSite) -> None:
    site = make_site(WORK.replace("jobs:work", "jobs:once").replace("pools.work", "pools.once"))
    first = site.start()
    job = site.queue.enqueue("once")
    site.running_pid(job)
    shutil.rmtree(site.database.with_name("app.db-supervisor"))
    first.kill()
    first.wait()
    site.start()
    assert site.done(job).crashes == 1


@pytest.mark.sqlite
@pytest.mark.fault(62)
def test_a_worker_that_makes_the_writers_lock_again_is_not_taken_for_ruined(make_site: MakeSite) -> None:
    site = make_site(WORK)
    site.start()
    lock = site.database.with_name("app.db-supervisor") / "write.lock"
    [pid] = {site.done(site.queue.enqueue("work")).result["pid"]}
    for _ in range(2):
        lock.unlink()
        time.sleep(1.1)  # a writer looks for it once a second
        jobs = site.queue.enqueue_many("work", [{"seconds": 0.02}] * 3)  # long enough for a look at the process
        assert [site.done(job).result["pid"] for job in jobs] == [pid] * 3
        assert lock.exists()
    site.verdict()


def refused(folder: Path, **environment: str) -> str:
    """What `run` says when it refuses, having changed nothing in the folder."""
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    ran = forkserver.run(["run", "--burst"], cwd=folder, env={**os.environ, **environment})
    assert ran.returncode == 3, ran
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before
    [line] = ran.stderr.strip().splitlines()
    return line


def fresh(tmp_path: Path) -> Path:
    """A configuration in a folder in which anybody may write, as /tmp is; there is no database yet."""
    (tmp_path / "supervisor.toml").write_text(
        f'database = "sqlite:///./app.db"\n{WORK}[admin]\nlisten = "unix:a.sock"\n'
    )
    (tmp_path / "jobs.py").write_text("def work(payload, ctx): ...\n")
    tmp_path.chmod(0o1777)
    return tmp_path


@needs_root
@pytest.mark.fault(62)
def test_a_folder_that_another_user_has_made_beforehand_is_refused(tmp_path: Path) -> None:
    site = fresh(tmp_path)
    planted = site / "app.db-supervisor"
    planted.mkdir()
    (planted / "admin-token").write_text("known-to-somebody-else\n")
    os.chown(planted, NOBODY, NOBODY)
    assert f"belongs to user {NOBODY}" in refused(site)
    assert not (site / "app.db").exists()


@pytest.mark.fault(62)
@pytest.mark.parametrize("target", ["a folder", "nothing"])
def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    site = fresh(tmp_path)
    elsewhere = tmp_path.parent / f"{tmp_path.name}-elsewhere"
    if target == "a folder":
        elsewhere.mkdir()
    (site / "app.db-supervisor").symlink_to(elsewhere)
    assert "symbolic link" in refused(site)
    assert not (site / "app.db").exists()
    assert target == "nothing" or not list(elsewhere.iterdir())


@pytest.mark.fault(62)
@pytest.mark.parametrize("how", ["link", "second name", "pipe", "folder"])
def test_a_strange_file_in_the_place_of_a_lock_is_refused_and_not_written(tmp_path: Path, how: str) -> None:
    site = fresh(tmp_path)
    assert forkserver.run(["migrate"], cwd=site).returncode == 0
    lock, victim = site / "app.db-supervisor" / "write.lock", site / "victim"
    lock.unlink()
    victim.write_bytes(b"")
    victim.chmod(0o600)
    if how == "link":
        lock.symlink_to(victim)
    elif how == "second name":
        lock.hardlink_to(victim)
    elif how == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    (site / "app.db-wal").unlink(missing_ok=True)
    line = forkserver.run(["run", "--burst"], cwd=site)
    assert line.returncode == 3, line
    assert "write.lock" in line.stderr
    assert victim.read_bytes() == b""
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


@needs_root
@pytest.mark.fault(62)
@pytest.mark.parametrize("what", ["another user's folder", "a link"])
def test_a_runtime_folder_that_somebody_else_has_made_is_refused(tmp_path: Path, what: str) -> None:
    site = fresh(tmp_path)
    assert forkserver.run(["migrate"], cwd=site).returncode == 0
    runtime = site / "runtime"
    runtime.mkdir(mode=0o1777)
    runtime.chmod(0o1777)
    planted = runtime / "job-supervisor"
    if what == "a link":
        planted.symlink_to(site)
    else:
        planted.mkdir()
        os.chown(planted, NOBODY, NOBODY)
    ran = forkserver.run(["run", "--burst"], cwd=site, env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)})
    assert ran.returncode == 3, ran
    assert "job-supervisor" in ran.stderr
    assert not list((site / "app.db-supervisor").glob("owner-*"))
    assert not list(site.glob("scoreboard-*"))
