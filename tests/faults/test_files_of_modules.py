"""Files that a handler's module opens when it is imported are the same files in every worker, and nobody else's."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.site_under_test import MakeSite

HANDLERS = """
import logging, logging.handlers, os, sqlite3
from ledger import record

LOGS = [logging.getLogger(f"part{number}") for number in range(12)]
for log in LOGS:
    log.addHandler(logging.FileHandler(log.name + ".log"))
    log.setLevel(logging.INFO)
    log.propagate = False
HOST = open("/etc/hostname")
RAW = os.open("raw", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with sqlite3.connect("other.db") as other:
    other.execute("CREATE TABLE IF NOT EXISTS t (x)")
other.close()
READ = sqlite3.connect("file:other.db?mode=ro", uri=True)

def work(payload, ctx):
    record("start", ctx)
    for log in LOGS:
        log.info("job %d begins", ctx.job_id)
    os.write(RAW, b"line\\n")
    assert READ.execute("SELECT count(*) FROM t").fetchone() == (0,)
    record("end", ctx)
    return HOST.read() if payload == "host" else None

def reopen(payload, ctx):
    record("start", ctx)
    for log in LOGS:
        [handler] = log.handlers
        handler.close()
        handler._open()
    record("end", ctx)
"""
POOLS = """
[pools.work]
handler = "jobs:work"
workers = 2
[pools.reopen]
handler = "jobs:reopen"
workers = 1
"""


@pytest.mark.fault(79)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_files_opened_by_a_module_are_the_same_in_each_worker(make_site: MakeSite, start: str) -> None:
    site = make_site(POOLS.replace("workers = 2", f'workers = 2\nstart = "{start}"'), HANDLERS)
    jobs = site.queue.enqueue_many("work", [{}] * 20)
    host = site.queue.enqueue("work", "host")
    closing = site.queue.enqueue_many("reopen", [{}] * 3)
    site.start()
    for job in (*jobs, *closing):
        assert site.done(job).attempts == 1
    assert site.done(host).result == Path("/etc/hostname").read_text()
    site.verdict()
    assert not site.event("worker_died")
    for number in range(12):
        lines = (site.folder / f"part{number}.log").read_text().splitlines()
        assert sorted(lines) == sorted(f"job {job} begins" for job in (*jobs, host))
    assert (site.folder / "raw").read_text().count("line\n") == 21
    with contextlib.closing(sqlite3.connect(site.database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
