"""Batches of jobs while the programs that make them, and the workers that end them, are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.site_under_test import Site, kill, wait_for

MakeSite = Callable[..., Site]
HANDLERS = """
import time
from ledger import record

def handle(payload, ctx):
    record("start", ctx)
    if ctx.type == "sum":
        return ctx.meta["batch"]
    time.sleep(0.005)
    for _ in range(payload.get("children", 0)):
        ctx.enqueue("t", {"children": payload["children"] - 1}, batch=ctx.batch)
    if payload.get("fails"):
        raise ValueError("as asked")
"""
POOL = (
    '[pools.p]\nhandler = "jobs:handle"\ntypes = ["t", "sum"]\nworkers = 4\nmax_crashes = 100\n'
    "[pools.p.retry]\nmax_attempts = 1\n"
)
PROGRAM = """
import sys, time
from supervisor import Queue

with Queue(sys.argv[1]).batch(on_done="sum") as batch:
    batch.enqueue_many("t", [{}] * 3)
    print(batch.id, flush=True)
    time.sleep(600)
"""


def callbacks(site: Site) -> list[tuple[int, str, str]]:
    return site.rows("SELECT id, status, result FROM jobs WHERE type = 'sum'")


@pytest.mark.fault(2)
@pytest.mark.each_engine
def test_a_program_killed_inside_the_block_leaves_an_open_batch_that_can_be_closed(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    supervisor = site.start()
    with subprocess.Popen([sys.executable, "-c", PROGRAM, site.url], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        batch = int(program.stdout.readline())
        program.kill()
    wait_for(lambda: site.count("done") == 3, "the jobs that were enqueued")
    shown = site.command("jobs", "batch").stdout
    assert f"{batch}  open" in shown
    assert callbacks(site) == []
    for _ in range(2):
        site.command("jobs", "batch", str(batch), "--close")
        wait_for(lambda: [row[1:] for row in callbacks(site)] == [("done", str(batch))], "one callback")
    assert "all batches have ended" in site.command("jobs", "batch").stdout
    assert site.stop(supervisor) == 0


@pytest.mark.fault(2)
@pytest.mark.each_engine
def test_a_batch_that_grows_calls_back_once_and_last_while_workers_are_killed(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    supervisor = site.start()
    with site.queue.batch(on_done="sum") as batch:
        batch.enqueue_many("t", [{"children": 2}] * 60)  # and each of these two, which have one each: 300 in all
        batch.enqueue("t", {"fails": True})
    hit = set()
    while site.queue.batches.get(batch.id).waiting:
        for slot in site.workers()[:1]:
            kill(slot.pid)
            hit.add(slot.pid)
        time.sleep(0.3)
    assert hit
    wait_for(lambda: [row[1:] for row in callbacks(site)] == [("done", str(batch.id))], "one callback")
    seen = site.queue.batches.get(batch.id)
    assert (seen.state, seen.callback, seen.done, seen.failed) == ("ended", callbacks(site)[0][0], 300, 1)
    last = site.rows("SELECT max(completed_at) FROM jobs WHERE type = 't'")[0][0]
    assert site.rows("SELECT created_at FROM jobs WHERE type = 'sum'")[0][0] >= last - 0.01
    assert site.stop(supervisor) == 0
