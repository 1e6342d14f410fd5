"""Several programs bring one database up to date at once; an older program meets a newer schema."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from supervisor.store.migrate import shipped
from supervisor.store.sqlite import schema
from supervisor.store.sqlite.connection import Connection
from supervisor.store.sqlite.place import Place
from tests.faults.surroundings import command
from tests.ledger import Ledger
from tests.site_under_test import Site, wait_for

MakeSite = Callable[..., Site]
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


@pytest.mark.sqlite
@pytest.mark.fault(26)
def test_two_supervisors_that_start_on_an_older_schema_both_work_and_one_has_migrated(make_site: MakeSite) -> None:
    site = make_site(POOL)
    jobs = make_older(site)
    first, second = site.start(wait=False), site.start(wait=False)
    for supervisor in (first, second):
        wait_for(lambda s=supervisor: site.event("recovered", pid_of=s), site.log.read_text())  # type: ignore[misc]
    for job in jobs:
        site.done(job)
    site.verdict(others=jobs)
    assert [site.stop(first), site.stop(second)] == [0, 0]
    check_backups(site, jobs)


@pytest.mark.sqlite
@pytest.mark.fault(26)
def test_of_many_programs_that_migrate_at_once_one_does_and_each_copy_kept_is_of_before(make_site: MakeSite) -> None:
    site = make_site(POOL)
    jobs = make_older(site)
    words = [sys.executable, "-m", "supervisor", "migrate", "-c", str(site.config)]
    programs = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    said = [program.communicate(timeout=60)[0] for program in programs]
    assert [program.returncode for program in programs] == [0] * 6
    assert sum("applied migrations" in words for words in said) == 1
    assert sum("up to date" in words for words in said) == 5
    check_backups(site, jobs)
    assert not list(site.folder.glob("*.partial*")) + list(site.folder.glob(".*.partial*"))


@pytest.mark.sqlite
@pytest.mark.fault(26)
def test_an_older_program_refuses_a_newer_schema_and_leaves_it_alone(make_site: MakeSite) -> None:
    site = make_site(POOL)
    job = site.queue.enqueue("work")
    site.rows("UPDATE job_meta SET value = '99' WHERE key IN ('schema_version', 'oldest_writer')")
    site.queue.close()
    before = hashlib.sha256(site.database.read_bytes()).digest()
    said = command(site, "run", "--burst", code=3)
    assert said.count("\n") == 1
    assert f"this one knows schema {NEWEST}: upgrade it" in said
    assert hashlib.sha256(site.database.read_bytes()).digest() == before
    assert not site.runs("start", job)


@pytest.mark.sqlite
@pytest.mark.fault(26)
@pytest.mark.parametrize("how", ["migrate", "a second supervisor"])
def test_a_migration_under_running_jobs_leaves_them_to_their_workers(make_site: MakeSite, how: str) -> None:
    """Schema 9: a supervisor whose workers run jobs meanwhile, a foreign program that holds one, and a schedule."""
    site = make_site(PATIENT, PATIENT_HANDLER)
    first = site.start()
    end = site.folder / "end"
    running = site.queue.enqueue_many("work", [{"until": str(end)}] * 2)
    for job in running:
        site.running_pid(job)
    waiting = site.queue.enqueue("work")
    site.rows("INSERT INTO job_schedules (name, timing, next_at, last_at) VALUES ('nightly', '[]', 4e9, 1e9)")
    [(foreign,)] = site.rows("INSERT INTO jobs(type) VALUES ('theirs') RETURNING id")
    site.rows("UPDATE jobs SET status = 'running' WHERE id = ?", foreign)
    for column in ("type", "payload", "paused_at"):
        site.rows(f"ALTER TABLE job_schedules DROP COLUMN {column}")
    site.rows("DROP INDEX jobs_once")
    site.rows("UPDATE job_meta SET value = '9' WHERE key IN ('schema_version', 'oldest_writer')")
    before = held(site, *running, foreign)

    if how == "migrate":
        assert "applied migrations 10, 11" in command(site, "migrate")
    else:
        second = site.start()
    assert held(site, *running, foreign) == before
    assert site.rows("SELECT * FROM job_schedules") == [("nightly", "[]", 4e9, 1e9, None, "", "{}", None)]
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
    with contextlib.closing(sqlite3.connect(copy)) as opened:
        assert opened.execute("SELECT value FROM job_meta WHERE key = 'schema_version'").fetchone() == ("9",)
        assert opened.execute("SELECT count(*) FROM jobs WHERE status = 'running'").fetchone() == (3,)


def held(site: Site, *jobs: int) -> list[Any]:
    """What a claim consists of, apart from its expiry."""
    sql = "SELECT id, status, locked_by, claim_token, attempts, crashes FROM jobs WHERE id = ?"
    return [site.rows(sql, job) for job in jobs]


def make_older(site: Site) -> list[int]:
    """Put a database of the first schema in the place of the site's own, with jobs in it."""
    site.queue.close()
    site.database.unlink()
    connection = Connection(Place(site.database), synchronous="FULL", create=True)
    assert schema.migrate(connection, shipped("supervisor.store.sqlite")[:1]) == [1]
    connection.close()
    Ledger(site.ledger, site.database).watch_outcomes()
    for _ in range(20):
        site.rows("INSERT INTO jobs(type) VALUES ('work')")
    return [row[0] for row in site.rows("SELECT id FROM jobs")]


def check_backups(site: Site, jobs: list[int]) -> None:
    """The copy made before is of the first schema, with every job pending."""
    copies = list(site.folder.glob("app.db.before-*"))
    assert copies
    for copy in copies:
        with contextlib.closing(sqlite3.connect(copy)) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert opened.execute("SELECT value FROM job_meta WHERE key = 'schema_version'").fetchone() == ("1",)
            assert opened.execute("SELECT count(*) FROM jobs WHERE status = 'pending'").fetchone() == (len(jobs),)
    assert site.rows("SELECT value FROM job_meta WHERE key = 'schema_version'") == [(str(NEWEST),)]
