"""The next release brings a database up to date: with others that do so too, under running jobs, killed in between.

What is older in these tests is this release: a migration is added for the next one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from supervisor.store.migrate import shipped
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.files import DatabaseFiles
from supervisor.system.failpoints import VARIABLE
from tests import next_release
from tests.faults.surroundings import command
from tests.site_under_test import MakeSite, Site

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
PATIENT = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\nlock_time = "1s"\nprefetch = 1\n'
PATIENT_HANDLER = """
import os, time
from ledger import record

def work(payload, ctx):
    record("start", ctx)
    while "until" in (payload or {}) and not os.path.exists(payload["until"]):
        time.sleep(0.01)
    record("end", ctx)
"""
NEWEST = len(shipped("supervisor.store.sqlite"))
VERSION = "SELECT value FROM job_meta WHERE key = 'schema'"
PROGRAM = (sys.executable, "-m", "supervisor")


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """The environment of the next release."""
    return next_release.made(tmp_path_factory.mktemp("next"))


def migrate(site: Site, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    words = [*PROGRAM, "migrate", "-c", str(site.config)]
    return subprocess.run(
        words, cwd=site.folder, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.sqlite
@pytest.mark.fault(26)
def test_of_many_programs_that_migrate_at_once_one_does_and_each_copy_kept_is_of_before(
    make_site: MakeSite, following: Mapping[str, str]
) -> None:
    site = make_site(POOL)
    jobs = [site.queue.enqueue("work") for _ in range(20)]
    words = [*PROGRAM, "migrate", "-c", str(site.config)]
    programs = [
        subprocess.Popen(words, cwd=site.folder, env=following, stdout=subprocess.PIPE, text=True) for _ in range(6)
    ]
    said = [program.communicate(timeout=60)[0] for program in programs]
    assert [program.returncode for program in programs] == [0] * 6
    assert sum("applied migrations" in words for words in said) == 1
    assert sum("up to date" in words for words in said) == 5
    check_backups(site, jobs)
    assert not list(site.folder.glob("*.partial*")) + list(site.folder.glob(".*.partial*"))


def check_backups(site: Site, jobs: list[int]) -> None:
    """The copy made before is of the older schema, with every job pending."""
    copies = list(site.folder.glob("app.db.before-*"))
    assert copies
    for copy in copies:
        with closing(sqlite3.connect(copy)) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert opened.execute(VERSION).fetchone() == (str(NEWEST),)
            assert opened.execute(
                "SELECT count(*) FROM jobs WHERE status = 'pending' AND type = 'work'"
            ).fetchone() == (len(jobs),)
    assert site.rows(VERSION) == [(str(NEWEST + 1),)]


@pytest.mark.sqlite
@pytest.mark.fault(26)
def test_an_older_program_refuses_a_newer_schema_and_leaves_it_alone(make_site: MakeSite) -> None:
    site = make_site(POOL)
    job = site.queue.enqueue("work")
    site.rows("UPDATE job_meta SET value = '99' WHERE key IN ('schema', 'oldest_writer')")
    site.queue.close()
    before = hashlib.sha256(site.database.read_bytes()).digest()
    said = command(site, "run", "--burst", code=3)
    assert said.count("\n") == 1
    assert f"this one knows schema {NEWEST}: upgrade it" in said
    assert hashlib.sha256(site.database.read_bytes()).digest() == before
    assert not site.runs("start", job)


@pytest.mark.each_engine
@pytest.mark.fault(26)
@pytest.mark.parametrize(
    "older",
    ["UPDATE job_meta SET key = 'schema_version' WHERE key = 'schema'", "DROP TABLE job_limits"],
    ids=["another version", "before there were limits"],
)
def test_tables_from_before_the_first_release_are_refused_and_left_alone(make_site: MakeSite, older: str) -> None:
    site = make_site(POOL)
    site.queue.enqueue("work")
    site.queue.close()
    site.rows(older)
    before = site.rows("SELECT * FROM job_meta ORDER BY key")
    for words in (("run", "--burst"), ("check",), ("migrate",), ("status",), ("enqueue", "work")):
        said = command(site, *words, code=3)
        assert said.count("\n") == 1
        assert "from before the first release" in said
        assert "export what you need with SQL" in said
    assert "from before the first release" in " ".join(command(site, "doctor", code=1).split())
    assert site.rows("SELECT * FROM job_meta ORDER BY key") == before
    assert site.rows("SELECT status FROM jobs WHERE type = 'work'") == [("pending",)]
    site.rows("UPDATE job_meta SET key = 'schema' WHERE key = 'schema_version'")


@pytest.mark.sqlite
@pytest.mark.fault(26)
@pytest.mark.parametrize("how", ["migrate", "a second supervisor"])
def test_a_migration_under_running_jobs_leaves_them_to_their_workers(
    make_site: MakeSite, following: Mapping[str, str], how: str
) -> None:
    """A supervisor whose workers run jobs meanwhile, and a foreign program that holds one."""
    site = make_site(PATIENT, PATIENT_HANDLER)
    first = site.start()
    end = site.folder / "end"
    running = site.queue.enqueue_many("work", [{"until": str(end)}] * 2)
    for job in running:
        site.running_pid(job)
    waiting = site.queue.enqueue("work")
    [(foreign,)] = site.rows("INSERT INTO jobs(type) VALUES ('theirs') RETURNING id")
    site.rows("UPDATE jobs SET status = 'running' WHERE id = ?", foreign)
    before = held(site, *running, foreign)

    if how == "migrate":
        assert f"applied migrations {NEWEST + 1}" in migrate(site, following).stdout
    else:
        second = site.start(program=PROGRAM, env=following)
    assert held(site, *running, foreign) == before
    assert site.rows("SELECT name FROM job_colours") == [("red",)]
    site.rows("UPDATE jobs SET status = 'done' WHERE id = ?", foreign)
    end.touch()
    for job in (*running, waiting):
        site.done(job)
    site.verdict(others=[foreign])
    assert [len(site.runs("start", job)) for job in running] == [1, 1]
    assert site.stop(first) == 0
    if how != "migrate":
        assert site.stop(second) == 0
    [copy] = site.folder.glob("app.db.before-*")
    with closing(sqlite3.connect(copy)) as opened:
        assert opened.execute(VERSION).fetchone() == (str(NEWEST),)
        assert opened.execute("SELECT count(*) FROM jobs WHERE status = 'running'").fetchone() == (3,)


def held(site: Site, *jobs: int) -> list[Any]:
    """What a claim consists of, apart from its expiry."""
    sql = "SELECT id, status, locked_by, claim_token, attempts, crashes FROM jobs WHERE id = ?"
    return [site.rows(sql, job) for job in jobs]


# Killed in the middle


@pytest.mark.each_engine
@pytest.mark.fault(26)
def test_a_migration_that_dies_is_made_whole_by_the_next_one(make_site: MakeSite, following: Mapping[str, str]) -> None:
    site = make_site(POOL)
    job = site.queue.enqueue("work")
    for point in ("begin=kill", "set_meta.before=kill", "set_meta=kill@2", "commit.before=kill"):
        dying = migrate(site, {**following, VARIABLE: f"program:{point}"})
        assert dying.returncode == -signal.SIGKILL, (point, dying)
        assert site.rows(VERSION) == [(str(NEWEST),)]
        with pytest.raises(Exception, match="job_colours"):
            site.rows("SELECT name FROM job_colours")
    dying = migrate(site, {**following, VARIABLE: "program:commit=kill"})
    assert dying.returncode == -signal.SIGKILL
    assert site.rows("SELECT name FROM job_colours") == [("red",)]
    assert "up to date" in migrate(site, following).stdout
    assert site.rows("SELECT status, colour FROM jobs WHERE id = ?", job) == [("pending", None)]


@pytest.mark.sqlite
@pytest.mark.fault(26)
def test_a_migration_killed_at_any_statement_leaves_the_old_schema_or_the_new_one(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    connection = Connection(DatabaseFiles(old), synchronous="FULL", create=True)
    schema.migrate(connection)
    connection.raw.execute("INSERT INTO jobs(type) VALUES ('tag')")
    connection.raw.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    before, whole = look(old), tmp_path / "whole.db"
    shutil.copy(old, whole)
    assert not killed_at(whole, 10**9)
    after = look(whole)
    assert (before[0], after[0]) == (str(NEWEST), str(NEWEST + 1))

    statement, left = 0, []
    while True:
        statement += 1
        database = tmp_path / f"{statement}.db"
        shutil.copy(old, database)
        killed = killed_at(database, statement)
        found = look(database)
        assert found in (before, after), statement
        left.append(found[0])
        if not killed:
            break
        assert not killed_at(database, 10**9)  # whoever comes next completes it
        assert look(database) == after
        for file in tmp_path.glob(f"{statement}.db*"):
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    assert left == sorted(left, key=int)
    assert left.count(str(NEWEST)) > 12


def look(database: Path) -> tuple[str, list[str], list[tuple[object, ...]]]:
    """The schema's number, all definitions, and the jobs."""
    with closing(sqlite3.connect(database)) as raw:
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        [(version,)] = raw.execute(VERSION).fetchall()
        texts = [row[0] for row in raw.execute("SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name")]
        return version, texts, raw.execute("SELECT id, type, status FROM jobs ORDER BY id").fetchall()


def killed_at(database: Path, statement: int) -> bool:
    """Migrate in a child that is killed when it comes to this statement; whether it came so far."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            connection = Connection(DatabaseFiles(database), synchronous="FULL")
            seen = 0

            def count(_: str) -> None:
                nonlocal seen
                seen += 1
                if seen == statement:
                    os.kill(os.getpid(), signal.SIGKILL)

            connection.raw.set_trace_callback(count)
            schema.migrate(connection, next_release.plan("sqlite"))
            code = 0
        finally:
            os._exit(code)
    status = os.waitpid(pid, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status != 0
