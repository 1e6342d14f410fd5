"""A program reads one snapshot for minutes: the log cannot be emptied meanwhile, and somebody says so."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from supervisor.store.sqlite.maintenance import ALARM
from tests.site_under_test import MakeSite, Site, wait_for


@pytest.mark.sqlite
@pytest.mark.fault(22)
def test_a_log_that_a_reader_keeps_from_being_emptied_raises_an_alarm_and_is_cut_afterwards(
    make_site: MakeSite,
) -> None:
    """The alarm is about bytes, so what minutes of work would write is written at once."""
    site = make_site('[pools.work]\nhandler = "jobs:work"\nworkers = 2\n')
    log = Path(f"{site.database}-wal")
    site.start()
    with contextlib.closing(sqlite3.connect(site.database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        seen = reader.execute("SELECT count(*) FROM jobs").fetchone()
        write_much(site)
        jobs = site.queue.enqueue_many("work", [{}] * 50)
        for job in jobs:
            site.done(job)  # nobody is held up meanwhile
        alarm = wait_for(lambda: site.event("log_grows"), "the alarm")
        assert alarm["bytes"] > ALARM
        assert "read transaction" in alarm["hint"]
        assert reader.execute("SELECT count(*) FROM jobs").fetchone() == seen
        reader.execute("COMMIT")
    wait_for(lambda: site.event("log_truncated"), "the log to be cut", 30)
    assert log.stat().st_size < 1 << 20
    assert [event["event"] for event in site.events()].count("log_grows") == 1
    jobs.append(site.queue.enqueue("work"))
    site.done(jobs[-1])
    site.verdict()


def write_much(site: Site) -> None:
    """One transaction of the application's that is larger than the log may be."""
    with contextlib.closing(sqlite3.connect(site.database, timeout=30, isolation_level=None)) as application:
        application.execute("PRAGMA synchronous = OFF")  # nothing is promised of this one
        application.execute("CREATE TABLE pictures (picture BLOB)")
        application.execute("INSERT INTO pictures VALUES (zeroblob(?))", [ALARM])
