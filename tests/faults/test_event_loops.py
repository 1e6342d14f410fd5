"""What an async job leaves on its worker's event loop: the next one finds the loop as it was, or another worker."""

from __future__ import annotations

import pytest

from tests.site_under_test import MakeSite

POOL = '[pools.work]\nhandler = "jobs:Work"\nworkers = 1\ntimeout = "5s"\nretry = { max_attempts = 1 }\n'
HANDLERS = """
import asyncio, os, sys, time
from ledger import record

KEPT = []

class Work:
    async def handle(self, payload, ctx):
        record("start", ctx)
        if payload.get("habit"):
            await asyncio.sleep(0)
            await HABITS[payload["habit"]](asyncio.get_running_loop())
            record("end", ctx)
            return {"pid": os.getpid()}
        first, second = await asyncio.gather(later(1), asyncio.to_thread(int, 2))
        record("end", ctx)
        return {"pid": os.getpid(), "sum": first + second}

async def later(value, seconds=0.15):
    await asyncio.sleep(seconds)
    return value

def raises(*_, **__):
    raise RuntimeError("replaced")

def left(coroutine):
    KEPT.append(asyncio.ensure_future(coroutine))

def habit(function):
    HABITS[function.__name__.replace("_", " ")] = function

HABITS = {}

@habit
async def shuts_the_executor_down(loop):
    await loop.shutdown_default_executor()

@habit
async def shuts_its_own_executor_down(loop):
    from concurrent.futures import ThreadPoolExecutor
    executor = ThreadPoolExecutor(1)
    loop.set_default_executor(executor)
    executor.shutdown()

@habit
async def has_a_factory_that_raises(loop):
    loop.set_task_factory(raises)

@habit
async def stops_the_loop_later(loop):
    loop.call_later(0.05, loop.stop)

@habit
async def blocks_the_loop_later(loop):
    loop.call_later(0.05, time.sleep, 30)

@habit
async def exits_later(loop):
    async def exits():
        await asyncio.sleep(0.05)
        sys.exit(3)
    left(exits())
    loop.call_later(0.05, sys.exit, 3)

@habit
async def cancels_all_later(loop):
    async def cancels():
        await asyncio.sleep(0.05)
        while True:
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0.001)
    left(cancels())

@habit
async def leaves_a_task_that_blocks(loop):
    async def blocks():
        await asyncio.sleep(0.05)
        time.sleep(30)
    left(blocks())

@habit
async def leaves_a_task_that_does_not_end(loop):
    async def endless():
        while True:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                pass
    left(endless())

@habit
async def leaves_callbacks_without_end(loop):
    def again():
        loop.call_soon(again)
    again()
"""
HABITS = [
    "shuts the executor down", "shuts its own executor down", "has a factory that raises", "stops the loop later",
    "blocks the loop later", "exits later", "cancels all later", "leaves a task that blocks",
    "leaves a task that does not end", "leaves callbacks without end",
]  # fmt: skip


@pytest.mark.fault(50)
def test_a_job_finds_the_event_loop_as_it_was_whatever_others_did_to_it(make_site: MakeSite) -> None:
    site = make_site(POOL, HANDLERS)
    site.start()
    bad: dict[str, int] = {}
    for habit in HABITS:
        bad[habit] = site.queue.enqueue("work", {"habit": habit})
        site.queue.wait(bad[habit], timeout=20)
        after = site.done(site.queue.enqueue("work"))
        assert (after.result["sum"], after.attempts, after.crashes) == (3, 1, 0), habit
    site.verdict()
    assert not site.event("worker_died")


SET_UP = """
import asyncio, os
from ledger import record

class Work:
    async def setup(self, ctx):
        self.asked, self.pulse = asyncio.Queue(), 0
        self.tasks = [asyncio.create_task(self.serve()), asyncio.create_task(self.beat())]

    async def serve(self):
        while True:
            answer = await self.asked.get()
            asyncio.create_task(self.answer(answer))

    async def answer(self, future):
        await asyncio.sleep(0.02)  # over the end of the run that has asked, if that does not wait
        self.answered = getattr(self, "answered", 0) + 1
        if not future.done():
            future.set_result(self.answered)

    async def beat(self):
        while True:
            await asyncio.sleep(0.01)
            self.pulse += 1

    async def handle(self, payload, ctx):
        record("start", ctx)
        future, before = asyncio.get_running_loop().create_future(), self.pulse
        self.asked.put_nowait(future)
        await asyncio.sleep(0)
        if payload.get("waits", True):
            await future
            while self.pulse == before:
                await asyncio.sleep(0.001)
        if payload.get("cancels"):
            for task in self.tasks:
                task.cancel()
        if payload.get("leaves"):
            self.left = asyncio.ensure_future(asyncio.sleep(60))
        record("end", ctx)
        return {"pid": os.getpid(), "answered": getattr(self, "answered", 0)}
"""


@pytest.mark.fault(50)
def test_what_an_async_set_up_has_started_goes_on_beside_the_jobs(make_site: MakeSite) -> None:
    site = make_site(POOL, SET_UP)
    site.start()
    payloads = [{}, {"leaves": True}, {"waits": False}, {"leaves": True, "waits": False}, {}]
    results = [site.done(site.queue.enqueue("work", payload)).result for payload in payloads]
    assert len({result["pid"] for result in results}) == 1
    assert results[-1]["answered"] == 5
    assert not site.event("process_changed")


@pytest.mark.fault(50)
def test_a_worker_whose_set_up_is_cancelled_by_a_job_is_replaced(make_site: MakeSite) -> None:
    site = make_site(POOL, SET_UP)
    site.start()
    first = site.done(site.queue.enqueue("work", {"cancels": True})).result
    after = [site.done(site.queue.enqueue("work")).result for _ in range(2)]
    assert after[0]["pid"] == after[1]["pid"] != first["pid"]
    assert site.told("process_changed", what="the event loop")
    site.verdict()
    assert not site.event("worker_died")
