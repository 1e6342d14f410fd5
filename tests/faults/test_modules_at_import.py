"""What a handler's module does at its import, to its streams or with files of its own: all workers run its jobs."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from supervisor.system import child, standard_streams
from tests.samples import sampled
from tests.site_under_test import MakeSite, wait_for

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 2\n'
HANDLERS = """
import os, sys
from ledger import record

class Bad:
    def write(self, text): raise RuntimeError("no writing")
    def flush(self): raise SystemExit("no flushing")

HABIT

def work(payload, ctx):
    record("start", ctx)
    print("printed")
    print("and told", file=sys.stderr)
    record("end", ctx)
    return "done"
"""
HABITS = {
    "closes": "sys.stdout.close(); sys.stderr.close()",
    "closes the descriptors": "os.closerange(0, 3)",
    "removes": "del sys.stdout, sys.stderr",
    "none": "sys.stdout = sys.stderr = None",
    "opens and closes": "sys.stdout = open(os.devnull, 'w'); sys.stdout.close()",
}


@pytest.mark.fault(45)
@pytest.mark.parametrize("habit", sampled(HABITS, quick=3))
def test_a_module_that_does_away_with_its_streams_at_import_ends_no_template(make_site: MakeSite, habit: str) -> None:
    site = make_site(POOL, HANDLERS.replace("HABIT", HABITS[habit]))
    site.start()
    for _ in range(3):
        assert site.done(site.queue.enqueue("work")).result == "done"
    assert not site.event("template_died")
    site.verdict()


@pytest.mark.fault(45)
def test_whatever_a_flush_raises_workers_are_forked(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS.replace("HABIT", "sys.stdout = Bad()").replace('print("printed")', ""))
    site.start()
    assert site.done(site.queue.enqueue("work")).result == "done"
    assert not site.event("template_died")


@pytest.mark.fault(45)
def test_a_fork_that_a_module_makes_impossible_is_told_and_kills_no_template(make_site: MakeSite) -> None:
    broken = "def fork(): raise ValueError('not today')\nos.fork = fork"
    site = make_site(f'{POOL}[pools.other]\nhandler = "other:work"\nworkers = 1\n', HANDLERS.replace("HABIT", broken))
    (site.folder / "other.py").write_text(HANDLERS.replace("HABIT", ""))
    site.start()
    problem = "no worker can be forked: ValueError: not today"
    wait_for(lambda: site.event("pool_broken", pool="work", problem=problem), "the reason")
    assert site.done(site.queue.enqueue("other")).result == "done"
    assert not site.event("template_died")
    assert not site.event("pool_isolated")


@pytest.mark.fault(45)
def test_a_child_that_cannot_say_why_it_fails_still_ends_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> int:
        raise ValueError

    monkeypatch.setattr(sys, "stderr", open(os.devnull, "w"))  # noqa: PTH123, SIM115
    sys.stderr.close()
    pid, pidfd = child.fork(fails, role="program", keep=())
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    os.close(pidfd)
    monkeypatch.delattr(sys, "stderr")
    standard_streams.flush()


FILES_HANDLERS = """
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
    site = make_site(POOLS.replace("workers = 2", f'workers = 2\nstart = "{start}"'), FILES_HANDLERS)
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
