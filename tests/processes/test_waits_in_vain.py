"""What is said when a wait has ended in vain: whatever keeps the job from starting."""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable
from typing import Any

import pytest

from supervisor import AsyncQueue, Queue, WaitTimeout
from tests.site_under_test import Site

POOL = '[pools.work]\nhandler = "jobs:work"\nworkers = 1\n'
Told = Callable[..., WaitTimeout]


@pytest.fixture(params=["Queue", "AsyncQueue"])
def told(request: pytest.FixtureRequest) -> Told:
    """What a call of a method of the queue raises when its time is up."""

    def blocking(queue: Queue, method: str, *args: Any, **options: Any) -> list[object]:
        async def awaited() -> None:
            asked = getattr(AsyncQueue.of(queue), method)(*args, **options)
            if method != "follow":
                await asked
            else:
                async for _ in asked:
                    pass

        asyncio.run(awaited())
        return []

    def call(queue: Queue, method: str, *args: Any, **options: Any) -> WaitTimeout:
        asked = getattr(queue, method) if request.param == "Queue" else functools.partial(blocking, queue, method)
        with pytest.raises(WaitTimeout) as late:
            list(asked(*args, **options))  # the events of `follow`; every other call raises at once
        return late.value

    return call


def test_that_no_supervisor_runs_is_said_with_the_database(make_site: Callable[..., Site], told: Told) -> None:
    site = make_site(POOL)
    late = told(site.queue, "run", "work", timeout=0.05)
    assert late.hint == f"no supervisor is running on {site.queue.url}"
    assert str(late) == f"job {late.job_id} has not finished within 50ms: {late.hint}"
    for method in ("wait", "follow"):
        again = told(site.queue, method, late.job_id, timeout=0)
        assert (again.hint, str(again)[-len(late.hint) :]) == (late.hint, late.hint)


def test_a_mistyped_or_paused_type_is_named(make_site: Callable[..., Site], told: Told) -> None:
    site = make_site(POOL)
    site.start()
    mistyped = "no pool takes the type wrok; did you mean work?"
    assert told(site.queue, "run", "wrok", timeout=0.05).hint == mistyped
    assert told(site.queue, "run", "wrok", timeout=0.05, cancel=True).hint == mistyped
    assert told(site.queue, "wait", site.queue.enqueue("wrok"), timeout=0.05).hint == mistyped
    site.queue.pause("work")
    assert told(site.queue, "run", "work", timeout=0.05).hint == "the type work is paused"


def test_nothing_is_said_of_a_job_that_runs(make_site: Callable[..., Site], told: Told) -> None:
    site = make_site(POOL)
    site.start()
    job = site.queue.enqueue("work", {"seconds": 2})
    site.running_pid(job)
    late = told(site.queue, "wait", job, timeout=0.05)
    assert (late.hint, str(late)) == ("", f"job {job} has not finished within 50ms")


@pytest.mark.each_engine
def test_a_program_learns_where_its_job_stands(make_site: Callable[..., Site]) -> None:
    site = make_site(POOL)
    first, second, third = (site.queue.enqueue("work", {"seconds": 5}) for _ in range(3))
    site.start()
    site.running_pid(first)
    [[runs], [next_one], [behind]] = (site.queue.why(job) for job in (first, second, third))
    assert (runs.code, runs.text.partition(" for ")[0]) == ("running", "it has been running in work-1")
    assert re.search(r"; its time limit is \S+$", runs.text)
    busy = f"it is the next job for the pool work, whose only worker, work-1, has been running job {first} (work) for "
    assert (next_one.code, next_one.advice) == ("next", "wait, or `supervisor scale work 2`")
    assert next_one.text.startswith(busy)
    assert (behind.code, behind.text.partition(";")[0]) == ("behind", "1 job is before it in the pool work")
