"""Handlers that misbehave, and rows that no handler could take: each fails alone and says why; the rest goes on."""

from __future__ import annotations

import json
import sqlite3
from datetime import datetime
from itertools import pairwise
from typing import Any

import psutil
import pytest

from tests.site_under_test import MakeSite, Site, kill, wait_for

WORK = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'


@pytest.mark.fault(11)
def test_a_handler_that_cannot_be_imported_stops_only_its_own_pool(make_site: MakeSite) -> None:
    site = make_site(
        """
        [pools.work]
        handler = "jobs:work"
        workers = 1
        [pools.missing]
        handler = "no_such_module:handle"
        workers = 2
        [pools.unset]
        handler = "jobs:Unset"
        workers = 2
        """,
        "from ledger import record\n"
        "def work(payload, ctx):\n    record('start', ctx)\n    record('end', ctx)\n"
        "class Unset:\n    def setup(self, ctx):\n        raise RuntimeError('no model here')\n"
        "    def handle(self, payload, ctx):\n        return 1\n",
    )
    site.start()
    waiting = [site.queue.enqueue("missing"), site.queue.enqueue("unset")]
    wait_for(lambda: site.event("pool_broken", pool="missing"), "the import's failure")
    died = wait_for(lambda: site.event("worker_died", pool="unset"), "the set-up's failure")
    assert "no model here" in died["detail"]
    assert "no module 'no_such_module'" in site.event("pool_broken", pool="missing")["problem"]
    site.queue.enqueue("work")
    status = wait_for(lambda: _problems(site), "status to show both")
    assert "no_such_module" in status["missing"]
    assert "no model here" in status["unset"]
    for pool, at_once in (("missing", 1), ("unset", 2)):  # two workers find out at the same time, the first time
        tries = wait_for(lambda pool=pool, n=at_once: _tries(site, pool)[: n + 2][n + 1 :] and _tries(site, pool))
        moments = [datetime.fromisoformat(event["timestamp"]) for event in tries]
        pauses = [(b - a).total_seconds() for a, b in pairwise(moments)]
        expected = [0] * (at_once - 1) + [1, 2]
        # Never sooner; on a busy machine a try may begin late.
        assert all(wait - 0.1 <= took < wait + 10 for took, wait in zip(pauses, expected, strict=False)), pauses
    site.verdict(pending=waiting)


def _problems(site: Site) -> dict[str, str]:
    """What `status` says is wrong with each pool, once it says so of two."""
    shown = json.loads(site.command("status", "--json").stdout)
    problems = {pool["name"]: pool["problem"] for pool in shown["pools"] if pool["problem"]}
    return problems if len(problems) == 2 else {}


def _tries(site: Site, pool: str) -> list[dict[str, Any]]:
    def is_try(event: dict[str, Any]) -> bool:
        return event["event"] == "pool_broken" or (event["event"] == "worker_died" and event["reason"] != "unstarted")

    return [event for event in site.events() if event.get("pool") == pool and is_try(event)]


LEAKY = """
import subprocess
from ledger import record

def leaky(payload, ctx):
    '''Leaves a family behind, in a session of its own.'''
    record("start", ctx)
    family = subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300"], start_new_session=True)
    record("end", ctx)
    return family.pid
"""


@pytest.mark.fault(15)
@pytest.mark.parametrize("end", ["killed", "worn out"])
def test_what_a_handler_left_behind_ends_with_its_worker(make_site: MakeSite, end: str) -> None:
    limit = 1 if end == "worn out" else 100
    site = make_site(f'[pools.leaky]\nhandler = "jobs:leaky"\nworkers = 1\nmax_jobs_per_worker = {limit}\n', LEAKY)
    site.start()
    job = site.queue.enqueue("leaky")
    orphan = site.done(job).result
    assert isinstance(orphan, int)
    if end == "killed":
        family = [orphan, *(child.pid for child in wait_for(lambda: psutil.Process(orphan).children(), "the sleeps"))]
        assert len(family) == 2 or len(family) == 3
        kill(site.runs("start", job)[0][1])
    else:
        family = [orphan]
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in family), "the orphans to be gone and reaped", patience=2)
    site.verdict()


PAYLOADS = {
    "'{broken'": "not valid JSON",
    "''": "not valid JSON",
    "CAST(x'7b007d' AS TEXT)": "not valid JSON",  # a NUL
    "CAST(x'ff7b7d' AS TEXT)": "UTF-8",
    "CAST(x'22eda08022' AS TEXT)": "UTF-8",  # half of a surrogate pair
    f"'{'[' * 60_000}'": "not valid JSON",  # deeper than the interpreter's stack
}


@pytest.mark.sqlite
@pytest.mark.fault(43)
def test_payloads_that_are_no_json_fail_with_a_reason_and_the_loop_goes_on(make_site: MakeSite) -> None:
    site = make_site(WORK)
    site.start()
    inserted = {}
    for value, words in PAYLOADS.items():
        [(job,)] = site.rows(f"INSERT INTO jobs(type, payload) VALUES ('work', {value}) RETURNING id")
        inserted[job] = words
        site.queue.enqueue("work")
    site.verdict(others=inserted, failed=inserted)
    for job, words in inserted.items():
        assert words in str(site.job(job).last_error)
    assert not site.event("worker_died")


NO_TEXT = ["ff", "7500ff", "eda080"]  # the last is half a surrogate pair
WITH_NUL = ["6100", "00"]


@pytest.mark.sqlite
@pytest.mark.fault(43)
def test_other_columns_that_cannot_be_read_stop_nobody(make_site: MakeSite) -> None:
    site = make_site(WORK + 'lock_time = "1s"\n')
    supervisor = site.start()
    # What is no text, and a NUL, are refused by the table itself.
    without_nul = [text for text in NO_TEXT if "00" not in text]
    for text in NO_TEXT + WITH_NUL:
        with pytest.raises(sqlite3.IntegrityError):
            insert(site, "requires", text)
    running = [insert(site, "unique_key", text) for text in without_nul]
    running += [insert(site, "updated_at", text) for text in NO_TEXT + WITH_NUL]
    held = [insert(site, "status, locked_by", text, "'running', ") for text in NO_TEXT + WITH_NUL]
    site.queue.enqueue("work")
    site.verdict(others=[*running, *held], hit=held)
    for command in (["status"], ["jobs", "list"], ["jobs", "show", str(running[0])]):
        shown = site.command(*command, "--json")
        assert shown.stderr == ""
        assert json.loads(shown.stdout)
    assert site.stop(supervisor) == 0
    site.start()  # such rows do not stop the next start either
    site.queue.enqueue("work")
    site.verdict(others=[*running, *held], hit=held)
    assert not site.event("store_failed")
    assert not site.event("maintainer_died")


def insert(site: Site, columns: str, text: str, before: str = "") -> int:
    sql = f"INSERT INTO jobs(type, {columns}) VALUES ('work', {before}CAST(x'{text}' AS TEXT)) RETURNING id"
    return int(site.rows(sql)[0][0])
