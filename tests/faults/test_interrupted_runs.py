"""A run is interrupted, at its very beginning or later: no other job is charged for what it has begun."""

from __future__ import annotations

import pytest

from supervisor.domain.job import Status
from tests.faults.lone_worker import LoneWorker
from tests.samples import sampled
from tests.site_under_test import MakeSite, wait_for

# The device is a thread of C, of which Python knows nothing.
DEVICE = """
import asyncio, ctypes, os, signal, threading, time
from ledger import record

C = ctypes.CDLL(None)
C.pthread_create.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
C.pthread_join.argtypes = [ctypes.c_ulong, ctypes.c_void_p]
kernel = ctypes.c_ulong()  # what runs on the "device": a thread of C, of which Python knows nothing

def launch(seconds):
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # no signal may end its sleep
    C.pthread_create(ctypes.byref(kernel), None, ctypes.cast(C.sleep, ctypes.c_void_p), seconds)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)

def synchronize():
    if kernel.value:
        C.pthread_join(kernel, None)  # no signal interrupts it
        kernel.value = 0

def work(payload, ctx):
    record("start", ctx)
    if seconds := payload.get("kernel"):
        launch(seconds)
    if seconds := payload.get("thread"):
        threading.Thread(target=time.sleep, args=(seconds,), daemon=True).start()
    while payload.get("hangs"):
        time.sleep(0.005)
    synchronize()
    record("end", ctx)
    return {"pid": os.getpid()}

class Plain:
    def handle(self, payload, ctx):
        return work(payload, ctx)

    def handle_batch(self, payloads, ctx):
        return [work(payload, one) for payload, one in zip(payloads, ctx.jobs)]

class Synchronizes(Plain):
    def after_interrupt(self, ctx):
        synchronize()

class Awaits(Plain):
    async def after_interrupt(self, ctx):
        await asyncio.to_thread(synchronize)

class Holds(Plain):
    def after_interrupt(self, ctx):
        ctypes.PyDLL(None).sleep(60)  # with the interpreter's lock

class Returns(Plain):
    def after_interrupt(self, ctx):
        pass

class Raises(Plain):
    def after_interrupt(self, ctx):
        raise RuntimeError("the device is lost")

class Async:
    async def handle(self, payload, ctx):
        record("start", ctx)
        if payload.get("kernel"):
            launch(payload["kernel"])
        if seconds := payload.get("executor"):
            await asyncio.to_thread(time.sleep, seconds)
        while payload.get("blocks"):
            time.sleep(0.005)
        while payload.get("hangs"):
            await asyncio.sleep(0.005)
        await asyncio.to_thread(synchronize)
        record("end", ctx)
        return {"pid": os.getpid()}
"""
ON_A_DEVICE = """
[pools.work]
handler = "jobs:{handler}"
workers = 1
timeout = "{limit}"
cancel_grace = "0s"
kill_grace = "{grace}"
retry = {{ max_attempts = 1 }}
{more}
"""
SAME, OTHER, KILLED = "same", "other", "killed"
LONG = {"kernel": 5}  # seconds: longer than the limits, and than kill_grace
CASES = [
    ("Plain", LONG, "", OTHER),
    ("Plain", LONG, "concurrency = 2", OTHER),
    ("Synchronizes", {"kernel": 1}, "", SAME),
    ("Holds", {}, "", KILLED),
    ("Awaits", {"kernel": 1}, "concurrency = 2", OTHER),
    ("Async", {}, "", OTHER),
    ("Async", {"executor": 5}, "concurrency = 2", OTHER),
    ("Async", LONG, "gpus = [0]", OTHER),
    ("Async", LONG, "gpus = [0]\nconcurrency = 2", OTHER),
    ("Synchronizes", LONG, "", KILLED),
    ("Plain", LONG, "spares = 1", OTHER),
    ("Plain", LONG, "batch_size = 2", OTHER),
    ("Synchronizes", {"kernel": 1}, "batch_size = 2", SAME),
    ("Synchronizes", {"kernel": 1}, "concurrency = 2", OTHER),
    ("Awaits", {"kernel": 1}, "", SAME),
    ("Synchronizes", LONG, "concurrency = 2", OTHER),
    ("Raises", LONG, "", OTHER),
    ("Raises", LONG, "concurrency = 2", OTHER),
    ("Returns", {"thread": 5}, "concurrency = 2", OTHER),
    ("Async", {}, "concurrency = 2", SAME),
    ("Async", {"blocks": True}, "", OTHER),
    ("Async", {"blocks": True}, "concurrency = 2", OTHER),
    ("Async", {"executor": 5}, "", OTHER),
]


@pytest.mark.fault(14)
@pytest.mark.parametrize("way", ["timeout", "cancel"])
@pytest.mark.parametrize(("handler", "leaves", "more", "then"), sampled(CASES, 8))
def test_the_job_behind_an_interrupted_one_is_not_charged_for_what_that_left(
    make_site: MakeSite, handler: str, leaves: dict[str, object], more: str, then: str, way: str
) -> None:
    grace = "400ms" if then is KILLED else "4s"
    limit = "1m" if way == "cancel" else "300ms"
    site = make_site(ON_A_DEVICE.format(handler=handler, grace=grace, more=more, limit=limit), DEVICE)
    site.start()
    beside = "concurrency" in more or "batch" in more  # it would run beside the first, if it were there
    first, *prefetched = site.queue.enqueue_many("work", [{"hangs": True, **leaves}, {}][: 1 if beside else 2])
    pid = site.running_pid(first)
    if way == "cancel":
        site.queue.cancel(first)
    if beside:
        wait_for(lambda: site.job(first).status.finished)
    behind = site.done(prefetched[0] if prefetched else site.queue.enqueue("work", {}))
    assert (behind.attempts, behind.crashes) == (1, 0)
    assert (behind.result["pid"] == pid) == (then is SAME)
    ended = site.job(first)
    assert ended.status is (Status.CANCELLED if way == "cancel" else Status.FAILED)
    assert ended.crashes == 0


HANDLERS = """
import signal, sys
from ledger import record
from supervisor.system import signals
from supervisor.system.slot import Cancel

class Work:
    def setup(self, ctx):
        sys.settrace(self.trace)

    def trace(self, frame, event, argument):
        return self.strike if frame.f_code.co_qualname == "Sequential._begin" else None

    def strike(self, frame, event, argument):
        if event == "return" and frame.f_locals["claim"].type == "hit":
            slot, claim = frame.f_locals["self"]._parts.slot, frame.f_locals["claim"]
            slot.cancel(claim.job_id, claim.token, Cancel.TIMEOUT)
            signal.raise_signal(signals.INTERRUPT)
        return self.strike

    def after_interrupt(self, ctx):
        pass  # nothing goes on

    def handle(self, payload, ctx):
        record("start", ctx)
        record("end", ctx)

    def handle_batch(self, payloads, ctx):
        return [self.handle(payload, job) for payload, job in zip(payloads, ctx.jobs)]
"""
POOL = '[pools.work]\nhandler = "jobs:Work"\ntypes = ["hit", "work"]\nworkers = 1\nretry = { max_attempts = 1 }\n'


@pytest.mark.fault(14)
def test_a_time_limit_in_the_instant_in_which_a_run_begins_is_that_runs(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    worker = LoneWorker(site)
    hit, behind = site.queue.enqueue("hit"), site.queue.enqueue("work")
    site.done(behind)
    failed = wait_for(lambda: site.job(hit).last_error, "the time limit to be recorded")
    assert "over its time limit" in failed
    assert worker.drain()[0] == 0
