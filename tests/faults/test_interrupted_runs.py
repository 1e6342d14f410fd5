"""A run is interrupted, and what it has begun goes on: no other job is charged for that, or waits for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from supervisor.domain.job import Status
from tests.site_under_test import Site

MakeSite = Callable[..., Site]

# The device is busy for some seconds after whoever has used it was interrupted, like one with kernels in its queue.
HANDLERS = """
import ctypes, threading, time
from ledger import record

busy_until = 0.0

def wait_for_device():
    while time.monotonic() < busy_until:
        time.sleep(0.01)

def use(payload, ctx):
    global busy_until
    record("start", ctx)
    if payload["long"]:
        busy_until = time.monotonic() + 4
        if payload.get("thread"):
            threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        while True:
            time.sleep(0.005)
    wait_for_device()
    record("end", ctx)

class Without:
    def handle(self, payload, ctx):
        use(payload, ctx)

class Waits(Without):
    def after_interrupt(self, ctx):
        wait_for_device()

class Quick(Without):
    def after_interrupt(self, ctx):
        global busy_until
        busy_until = 0.0

class Hangs(Without):
    def after_interrupt(self, ctx):
        ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock

class Raises(Without):
    def after_interrupt(self, ctx):
        raise RuntimeError("the device is lost")

class Batches(Without):
    def handle_batch(self, payloads, ctx):
        for payload, one in zip(payloads, ctx.jobs):
            use(payload, one)
        return [None] * len(payloads)
"""
POOL = """
[pools.work]
types = ["work"]
handler = "jobs:{handler}"
workers = 1
prefetch = 8
timeout = "500ms"
kill_grace = "1s"
cancel_grace = "100ms"
retry = {{ max_attempts = 1 }}
{more}
"""


@pytest.mark.fault(14)
@pytest.mark.parametrize("end", ["time limit", "cancel"])
@pytest.mark.parametrize(
    ("handler", "more", "thread"),
    [
        ("Without", "", False),
        ("Without", "spares = 1", False),
        ("Quick", "", False),
        ("Quick", "", True),
        ("Hangs", "", False),
        ("Raises", "", False),
        ("Batches", "batch_size = 4", False),
    ],
)
def test_the_next_job_pays_nothing_for_what_an_interrupted_one_left(
    make_site: MakeSite, handler: str, more: str, thread: bool, end: str
) -> None:
    limit = "" if end == "time limit" else '[types.work]\ntimeout = "30s"\n'
    site = make_site(POOL.format(handler=handler, more=more) + limit, HANDLERS)
    site.start()
    long = site.queue.enqueue("work", {"long": True, "thread": thread})
    pid = site.running_pid(long)
    innocents = site.queue.enqueue_many("work", [{"long": False}] * 5)
    if end == "cancel":
        site.queue.cancel(long)

    ended = site.queue.wait(long, timeout=20)
    jobs = [site.done(job) for job in innocents]

    assert ended.status is (Status.FAILED if end == "time limit" else Status.CANCELLED)
    assert {(job.attempts, job.crashes) for job in jobs} == {(1, 0)}
    assert max(job.completed_at or 0.0 for job in jobs) - (ended.completed_at or 0.0) < 3.5  # the device needs 4
    [(_, first, _)] = site.runs("start", innocents[0])
    assert (first == pid) == (handler == "Quick" and not thread)
    if first != pid:
        died = handler == "Hangs"
        assert site.event(
            "worker_died" if died else "replacement_planned", reason="after_interrupt" if died else "interrupted"
        )
    site.verdict(**{"failed" if end == "time limit" else "cancelled": [long]})


def test_a_worker_that_is_asked_whether_it_is_quiet_keeps_its_model(make_site: MakeSite) -> None:
    """It waits for its device instead of loading the model again; nobody is charged for the wait."""
    site = make_site(POOL.format(handler="Waits", more="").replace('kill_grace = "1s"', 'kill_grace = "20s"'), HANDLERS)
    site.start()
    long, innocent = site.queue.enqueue("work", {"long": True}), site.queue.enqueue("work", {"long": False})
    pid = site.running_pid(long)

    assert site.queue.wait(long, timeout=3).status is Status.FAILED  # at its limit, not when the device is quiet
    assert (site.done(innocent).attempts, site.runs("start", innocent)[0][1]) == (1, pid)
    site.verdict(failed=[long])


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_beside_other_jobs_the_worker_is_replaced_in_good_order(make_site: MakeSite, kind: str) -> None:
    """Not after a cancel that an async handler meets at an await: it leaves nothing behind."""
    handlers = """
import asyncio, time
from ledger import record

def plain(payload, ctx):
    record("start", ctx)
    for _ in range(200 if payload["long"] else 100):
        time.sleep(0.01)
    record("end", ctx)

async def awaiting(payload, ctx):
    record("start", ctx)
    await asyncio.sleep(2 if payload["long"] else 1)
    record("end", ctx)
"""
    name = "plain" if kind == "thread" else "awaiting"
    more = 'concurrency = 4\n[types.work]\ntimeout = "30s"\n'
    site = make_site(POOL.format(handler=name, more=more).replace("prefetch = 8\n", ""), handlers)
    site.start()
    long, other = site.queue.enqueue("work", {"long": True}), site.queue.enqueue("work", {"long": False})
    pid = site.running_pid(other)
    site.queue.cancel(long)
    assert site.queue.wait(long, timeout=20).status is Status.CANCELLED
    assert site.done(other).attempts == 1
    later = site.queue.enqueue("work", {"long": False})
    site.done(later)
    assert (site.runs("start", later)[0][1] == pid) == (kind == "async")
    site.verdict(cancelled=[long])
