"""Hostile rows of every kind at once: the other jobs, the commands and every page go on as without them."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing

import pytest

from tests.site_under_test import MakeSite
from tests.stopwatch import Stopwatch
from tests.web.client import ADMIN, admin_of

HOSTILE = [
    *(
        f"INSERT INTO jobs(type, {c}) VALUES ('work', 9223372036854775807)"
        for c in ("claim_token", "attempts", "crashes")
    ),
    "INSERT INTO jobs(id, type) VALUES (9223372036854775807, 'work')",
    "INSERT INTO jobs(id, type) VALUES (0, 'work')",
    "INSERT INTO jobs(id, type) VALUES (-5, 'work')",
    "INSERT INTO jobs(type) VALUES (CAST(x'6200ff' AS TEXT))",
    "INSERT INTO jobs(type) VALUES ('b' || char(0) || '/../../pools/x?')",
    "INSERT INTO jobs(type) VALUES (CAST('c' || char(0) || hex(zeroblob(5000000)) AS TEXT))",
    "INSERT INTO jobs(type, payload) VALUES ('work', '\"' || hex(zeroblob(15000000)) || '\"')",
    "INSERT INTO jobs(type, requires) VALUES ('work', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, unique_key) VALUES ('work', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, status, result) VALUES ('work', 'done', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, status, last_error) VALUES ('work', 'failed', hex(zeroblob(5000000)))",
    "INSERT INTO jobs(type, status, last_error) VALUES ('work', 'failed', CAST(x'ff00' AS TEXT))",
    "INSERT INTO jobs(type, payload) VALUES ('work', CAST(x'ff' AS TEXT))",
    "INSERT INTO jobs(type, status, completed_at) VALUES ('work', 'done', 1e308)",
    "INSERT INTO jobs(type, status, started_at) VALUES ('work', 'running', -1e308)",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
    "INSERT INTO jobs(type) SELECT 'type-' || i FROM n",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
    "INSERT INTO jobs(type, requires) SELECT 'work', 'cap' || i FROM n",
]
ADDRESSES = ("/", "/jobs", "/workers", "/schedules", "/failures", "/metrics", "/api/admin/jobs", "/healthz", "/readyz")


@pytest.mark.sqlite
@pytest.mark.fault(58, 59, 60, 61)
def test_hostile_rows_hold_up_neither_the_other_jobs_nor_status_nor_any_page(make_site: MakeSite) -> None:
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n' + ADMIN)
    for sql in HOSTILE:
        with closing(sqlite3.connect(site.database)) as foreign, foreign:
            try:
                foreign.execute(sql)
            except sqlite3.DatabaseError:
                foreign.rollback()  # what the table refuses harms nobody
    supervisor = site.start()
    jobs = site.queue.enqueue_many("work", [{}] * 10, priority=1)
    watch = Stopwatch()
    for job in jobs:
        site.done(job)
    assert watch.seconds() < 2.0  # one of them for the start of the workers
    admin = admin_of(site, supervisor)
    answers = {path: admin.get(path) for path in ADDRESSES}
    assert answers == dict.fromkeys(ADDRESSES, 200)
    assert len(site.command("status").stdout) < 100_000
    assert site.stop(supervisor, signal.SIGTERM) == 0
