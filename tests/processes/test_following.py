"""Programs that follow jobs: each sees what becomes of them and what they emit, wherever it can be read."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncQueue, FollowEvent, JobNotFound, Queue, Status, WaitTimeout
from tests.processes.test_emitting import HANDLERS
from tests.site_under_test import Site, wait_for
from tests.stopwatch import Stopwatch

MakeSite = Callable[..., Site]
PATIENCE = 30.0


def held_site(make_site: MakeSite, workers: int = 1) -> Site:
    site = make_site(f'[pools.held]\nhandler = "jobs:held"\nworkers = {workers}\n', HANDLERS)
    site.start()
    return site


def until(events: Iterator[FollowEvent], name: str) -> list[FollowEvent]:
    seen = []
    for event in events:
        seen.append(event)
        if event.name == name:
            return seen
    raise AssertionError(f"no {name}: {seen}")


def chunks(events: Iterable[FollowEvent]) -> list[Any]:
    return [event.chunk for event in events if event.name == "chunk"]


async def all_of(queue: AsyncQueue, job: int) -> list[FollowEvent]:
    return [event async for event in queue.follow(job, PATIENCE)]


def follow_elsewhere(url: str, job: int, found: Any) -> None:
    """In a process of its own."""
    with Queue(url) as queue:
        found.put([event.chunk for event in queue.follow(job, PATIENCE) if event.name == "chunk"])


@pytest.mark.each_engine
def test_whoever_follows_a_job_sees_it_from_its_wait_to_its_end(make_site: MakeSite) -> None:
    site = held_site(make_site)
    site.queue.pause("held", force=True)
    [job], go = site.held("held")
    events = site.queue.follow(job, PATIENCE)
    first = next(events)
    assert (first.name, first.job.status, first.attempt) == ("job", Status.PENDING, 0)
    site.queue.resume("held")
    seen = until(events, "chunk")
    assert [event.name for event in seen] == ["attempt", "job", "chunk"]
    assert (seen[0].attempt, seen[0].elsewhere, seen[2].number) == (1, False, 1)
    go.touch()
    seen = until(events, "end")
    assert chunks(seen) == ["end 1"]
    assert seen[-1].job.status is Status.DONE
    assert list(events) == []


def test_who_comes_later_and_other_processes_get_the_run_from_its_start(make_site: MakeSite) -> None:
    site = held_site(make_site)
    [job], go = site.held("held")
    first = site.queue.follow(job, PATIENCE)
    until(first, "chunk")
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=follow_elsewhere, args=(site.queue.url, job, answers))
    process.start()
    late = site.queue.follow(job, PATIENCE)
    assert chunks(until(late, "chunk")) == ["begin 1"]
    go.touch()
    assert chunks(until(first, "end")) == chunks(until(late, "end")) == ["end 1"]
    assert answers.get(timeout=PATIENCE) == ["begin 1", "end 1"]
    process.join(PATIENCE)
    after = list(site.queue.follow(job, 0))
    assert ([event.name for event in after], chunks(after)) == (
        ["attempt", "chunk", "chunk", "end"],
        ["begin 1", "end 1"],
    )


@pytest.mark.each_engine
def test_tasks_of_an_event_loop_follow_jobs_together_and_leave_nothing_behind(make_site: MakeSite) -> None:
    site = held_site(make_site, workers=2)
    jobs, go = site.held("held", 2)

    async def story() -> list[list[FollowEvent]]:
        async with AsyncQueue(site.queue.url) as queue:
            tasks = [asyncio.create_task(all_of(queue, job)) for job in jobs * 50]
            left = queue.follow(jobs[0])
            async for event in left:
                if event.name == "chunk":
                    break
            await left.aclose()
            given_up = asyncio.create_task(all_of(queue, jobs[1]))
            await asyncio.sleep(0.05)
            assert queue._queue._watcher.listening
            given_up.cancel()
            go.touch()
            found = await asyncio.gather(*tasks)
            assert not queue._queue._watcher.listening
            with pytest.raises(asyncio.CancelledError):
                await given_up
        assert len(asyncio.all_tasks()) == 1
        return found

    for run in (1, 2):  # a second loop
        found = asyncio.run(story())
        for seen in found:
            token = next(event.job.token for event in seen if event.name == "chunk")
            assert chunks(seen) == [f"begin {token}", f"end {token}"]
        if run == 1:
            go.unlink()
            jobs = site.queue.enqueue_many("held", [{"until": str(go)}] * 2)


def test_time_limits_and_unknown_and_deleted_jobs(make_site: MakeSite) -> None:
    site = make_site('[pools.held]\nhandler = "jobs:held"\nworkers = 1\n', HANDLERS)
    job = site.queue.enqueue("held", {"until": "never"})

    async def asynchronously(job: int, timeout: float | None) -> list[FollowEvent]:
        async with AsyncQueue(site.queue.url) as queue:
            return [event async for event in queue.follow(job, timeout)]

    for timeout in (0, 0.1):
        watch = Stopwatch()
        with pytest.raises(WaitTimeout, match=f"job {job} has not finished within"):
            list(site.queue.follow(job, timeout))
        with pytest.raises(WaitTimeout, match=f"job {job} has not finished within"):
            asyncio.run(asynchronously(job, timeout))
        assert watch.seconds() < 10
    with pytest.raises(JobNotFound):
        list(site.queue.follow(99))
    with pytest.raises(JobNotFound):
        asyncio.run(asynchronously(99, None))
    events = site.queue.follow(job)
    next(events)
    site.rows("DELETE FROM jobs WHERE id = ?", job)
    with pytest.raises(JobNotFound) as deleted:
        next(events)
    assert deleted.value.deleted


def test_who_is_slow_is_told_how_many_chunks_are_lost_and_the_time_limit_holds(make_site: MakeSite) -> None:
    site = make_site('[pools.endless]\nhandler = "jobs:endless"\nworkers = 1\ncancel_grace = "0s"\n', HANDLERS)
    site.start()
    job = site.queue.enqueue("endless", {"size": 16_000})
    wait_for(lambda: site.job(job).status is Status.RUNNING, "it to begin")
    seen: list[FollowEvent] = []
    with pytest.raises(WaitTimeout):
        seen.extend(site.queue.follow(job, 1.0))
    got = lost = 0
    for event in seen:
        got += event.name == "chunk"
        lost += event.lost
        assert event.name != "chunk" or event.number == got + lost == event.chunk["number"]
    assert got > 0
    assert lost > 0

    async def slowly() -> None:
        async with AsyncQueue(site.queue.url) as queue:
            async for _ in queue.follow(job, 1.0):
                await asyncio.sleep(0.01)  # so slow that there is always something new

    with pytest.raises(WaitTimeout):
        asyncio.run(asyncio.wait_for(slowly(), 20))
    site.queue.cancel(job)


@pytest.mark.each_engine
def test_a_run_whose_chunks_cannot_be_read_here_says_so(make_site: MakeSite) -> None:
    site = held_site(make_site)
    site.rows("UPDATE job_supervisors SET scoreboard = '/nowhere/scoreboard'")  # as it is on another host
    [job], go = site.held("held")

    async def asynchronously() -> list[FollowEvent]:
        async with AsyncQueue(site.queue.url) as queue:
            found = []
            async for event in queue.follow(job, PATIENCE):
                found.append(event)
                if event.name == "job" and event.job.status is Status.RUNNING:
                    go.touch()
            return found

    events = site.queue.follow(job, PATIENCE)
    seen = until(events, "attempt")
    assert seen[-1].elsewhere
    there = asyncio.run(asynchronously())
    assert [event.elsewhere for event in there if event.name == "attempt"] == [True]
    for found in ([*seen, *events], there):
        assert (chunks(found), found[-1].name, found[-1].job.status) == ([], "end", Status.DONE)


def test_a_fork_in_between_goes_on(make_site: MakeSite, tmp_path: Path) -> None:
    site = held_site(make_site)
    [job], go = site.held("held")
    events = site.queue.follow(job, PATIENCE)
    until(events, "chunk")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: that is the subject
        child = os.fork()
    if child == 0:
        signal.alarm(40)
        code = 1
        try:
            (tmp_path / "child").touch()
            code = 0 if chunks(events) == ["end 1"] else 2
        finally:
            os._exit(code)
    wait_for((tmp_path / "child").exists, "the child")
    go.touch()
    assert chunks(events) == ["end 1"]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
