"""A page of the database is damaged: nothing is built upon it."""

from __future__ import annotations

import hashlib
import os

import pytest

from tests.faults.surroundings import command
from tests.site_under_test import MakeSite, Site

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'


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
