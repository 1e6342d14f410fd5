"""AsyncQueue: the methods of Queue, awaited, and the event loop is never held up."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import inspect
import os
import pickle
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncQueue, InvalidJob, JobEvent, JobNotFound, Queue, Status, StoreError, WaitTimeout
from supervisor.client.connections import Connections, Seat
from supervisor.store.base import Producer
from tests.queue.conftest import end, run
from tests.store.kit import until

HELD = 2.0  # seconds for which another program holds the write lock


def our_threads() -> list[str]:
    """Without those of queues that are forgotten: an error may hold one in a cycle."""
    gc.collect()
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("supervisor_")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    until(lambda: not our_threads())


@contextlib.asynccontextmanager
async def stalls() -> AsyncIterator[list[float]]:
    """For how long the event loop has been held each time, in seconds beyond a millisecond's sleep."""
    found: list[float] = []

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            found.append(time.monotonic() - before - 0.001)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    yield found
    beating.cancel()


@contextlib.contextmanager
def write_lock_held(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Another program begins a transaction, and ends it after so many seconds, or at the end of the block."""
    begun, over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            begun.set()
            over.wait(seconds)
            connection.execute("COMMIT")

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(20)
    try:
        yield
    finally:
        if seconds is None:
            over.set()
        holder.join()


def test_it_has_every_method_of_a_queue_with_the_same_parameters() -> None:
    public = {name for name in dir(Queue) if not name.startswith("_")}
    assert public <= set(dir(AsyncQueue))
    queue = AsyncQueue("sqlite:////nowhere/app.db")
    for name in public - {"url"}:
        method = getattr(queue, name)
        assert inspect.getdoc(method), name
        assert inspect.signature(method).parameters == inspect.signature(getattr(queue._queue, name)).parameters, name


def test_calls_do_what_those_of_a_queue_do_and_never_in_the_loops_thread(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, store = set[int](), Connections.store

    def noting(connections: Connections, seat: Seat) -> Producer:
        threads.add(threading.get_ident())
        return store(connections, seat)

    monkeypatch.setattr(Connections, "store", noting)

    async def use() -> None:
        async with AsyncQueue(url) as queue:
            job_id = await queue.enqueue("tag", {"n": 1}, priority=4)
            assert (await queue.job(job_id)).priority == 4
            assert await queue.put("tag", unique_key="k") == (job_id + 1, True)
            assert await queue.put("tag", unique_key="k") == (job_id + 1, False)
            ids = await queue.enqueue_many("mail", [{}, {}])
            assert [job.id for job in await queue.jobs("mail")] == ids[::-1]
            assert await queue.count() == 4
            assert await queue.progress(job_id) == (None, None)
            assert await queue.pause("mail")
            assert await queue.resume("mail")
            assert await queue.cancel(job_id) is Status.CANCELLED
            await queue.retry(job_id)
            await queue.cancel(job_id)
            assert (await queue.wait(job_id)).status is Status.CANCELLED
            await queue.delete(job_id)
            with pytest.raises(JobNotFound):
                await queue.job(job_id)
            with pytest.raises(InvalidJob):
                await queue.enqueue("no type")
            await queue.create_tables()
        with pytest.raises(StoreError):
            await AsyncQueue(f"sqlite:///{path.parent}/none.db", create=False).count()

    asyncio.run(use())
    assert len(threads) >= 4
    assert threading.get_ident() not in threads


def test_a_hundred_enqueues_beside_a_held_write_lock_stall_no_event_loop(url: str, path: Path) -> None:
    async def use() -> None:
        async with AsyncQueue(url) as queue:
            await queue.create_tables()
            await queue.enqueue("warm")
            with write_lock_held(path, HELD):
                async with stalls() as found:
                    began = time.monotonic()
                    ids = await asyncio.gather(*(queue.enqueue("tag", {"n": number}) for number in range(100)))
                    took = time.monotonic() - began
            assert took > HELD / 2
            assert len(found) > 20
            # A call that blocks holds it for two seconds; a busy machine takes it away for a part of one.
            assert max(found) < HELD / 2
            assert len(set(ids)) == 100
        with Queue(url) as after:
            assert after.count("tag") == 100
            assert sorted(job.payload["n"] for job in after.jobs("tag")) == list(range(100))

    asyncio.run(use())


def test_looks_do_not_wait_for_writers_nor_need_the_default_executor(url: str, path: Path) -> None:
    async def use() -> None:
        async with AsyncQueue(url) as queue:
            job_id = await queue.enqueue("tag")
            loop = asyncio.get_running_loop()
            loop.set_default_executor(executor := ThreadPoolExecutor(1))
            free = threading.Event()
            executor.submit(free.wait, 30)
            with write_lock_held(path):
                writing = asyncio.create_task(queue.enqueue("tag"))
                await asyncio.sleep(0.01)
                assert (await queue.job(job_id)).type == "tag"
                assert await queue.count("tag") == 1
                assert not writing.done()
            free.set()
            await writing

    asyncio.run(use())


def test_a_thousand_waiters_cost_one_thread_and_one_look(url: str, path: Path) -> None:
    async def use() -> None:
        async with AsyncQueue(url) as queue:
            ids = await queue.enqueue_many("tag", range(1000))
            waiters = [asyncio.create_task(queue.wait(job_id, timeout=60)) for job_id in ids]
            await asyncio.sleep(0.2)
            assert not any(waiter.done() for waiter in waiters)
            assert our_threads().count("supervisor_watch") == 1
            assert len(our_threads()) <= 4
            with contextlib.closing(sqlite3.connect(path, timeout=20)) as other, other:
                other.execute("UPDATE jobs SET status = 'done'")
            assert {job.status for job in await asyncio.gather(*waiters)} == {Status.DONE}

    asyncio.run(use())


def test_where_no_thread_can_be_started_that_is_said_and_does_not_last(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: threading.Thread) -> None:
        if thread.name == "supervisor_watch":
            raise RuntimeError("can't start new thread")
        start(thread)

    start = threading.Thread.start

    async def use() -> None:
        async with AsyncQueue(url) as queue:
            job_id = await queue.enqueue("tag")
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", refused)
                with pytest.raises(StoreError, match="can't start new thread"):
                    await queue.wait(job_id, 20)
            assert not queue._queue._watcher.listening
            waiting = asyncio.create_task(queue.wait(job_id, 20))
            await asyncio.sleep(0.01)
            await queue.cancel(job_id)
            assert (await waiting).status is Status.CANCELLED

    asyncio.run(use())


def test_a_wait_ends_in_time_for_an_unknown_job_and_when_cancelled(queue: Queue, url: str) -> None:
    async def use() -> None:
        async with AsyncQueue(url) as many:
            with pytest.raises(JobNotFound):
                await many.wait(99)
            job_id = await many.enqueue("tag")
            for timeout in (0, 0.05):
                with pytest.raises(WaitTimeout, match="has not finished within"):
                    await many.wait(job_id, timeout)
            waiting = asyncio.create_task(many.wait(job_id))
            await asyncio.sleep(0.05)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert not many._queue._watcher.listening
            await many.cancel(job_id)
            assert (await many.wait(job_id, timeout=0)).status is Status.CANCELLED

    asyncio.run(use())


def test_events_are_an_asynchronous_iterator(queue: Queue, url: str, other: sqlite3.Connection) -> None:
    async def use() -> None:
        async with AsyncQueue(url) as many:
            job_id = await many.enqueue("tag")
            seen: list[JobEvent] = []
            async for event in many.events(job_id):
                seen.append(event)
                if event.status is Status.PENDING:
                    run(other, job_id)
                elif event.progress is None and not event.status.finished:
                    other.execute("UPDATE jobs SET progress = 0.5, progress_text = 'half' WHERE id = ?", (job_id,))
                elif event.progress == 0.5 and not event.status.finished:
                    end(other, job_id)
            assert [(event.status, event.text) for event in seen] == [
                (Status.PENDING, None),
                (Status.RUNNING, None),
                (Status.RUNNING, "half"),
                (Status.DONE, "half"),
            ]
            assert [event.status async for event in many.events(job_id)] == [Status.DONE]
            deleted = many.events(waiting := await many.enqueue("tag"))
            await anext(deleted)
            other.execute("DELETE FROM jobs WHERE id = ?", (waiting,))
            with pytest.raises(JobNotFound, match="was deleted"):
                await anext(deleted)

    asyncio.run(use())


def test_a_cancelled_call_that_has_not_begun_is_not_made_and_one_that_has_is_completed(url: str, path: Path) -> None:
    has_begun = threading.Event()

    def payloads() -> Iterator[object]:
        has_begun.set()
        yield {}

    async def use() -> None:
        async with AsyncQueue(url) as queue:
            await queue.create_tables()
            with write_lock_held(path):
                begun = asyncio.create_task(queue.enqueue_many("begun", payloads()))
                waiting = asyncio.create_task(queue.enqueue("waiting"))
                while not has_begun.is_set():
                    await asyncio.sleep(0.001)
                for task in (begun, waiting):
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
        with Queue(url) as after:
            assert [job.type for job in after.jobs()] == ["begun"]

    asyncio.run(use())


def test_it_is_used_by_one_event_loop_after_the_other_and_by_two_at_a_time(url: str) -> None:
    queue = AsyncQueue(url)

    async def use() -> Status:
        job_id = await queue.enqueue("tag")
        waiting = asyncio.create_task(queue.wait(job_id, 20))
        await asyncio.sleep(0.02)
        await queue.cancel(job_id)
        return (await waiting).status

    assert [asyncio.run(use()) for _ in range(3)] == [Status.CANCELLED] * 3
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: asyncio.run(use()), range(6))) == [Status.CANCELLED] * 6
    asyncio.run(queue.close())
    until(lambda: not our_threads())


def test_a_loop_that_is_closed_while_a_task_waits_harms_no_other(url: str) -> None:
    queue = AsyncQueue(url)

    async def leave() -> int:
        job_id = await queue.enqueue("tag")
        task = asyncio.create_task(queue.wait(job_id))
        await asyncio.sleep(0.05)
        del task
        return job_id

    async def stay(job_id: int) -> Status:
        waiting = asyncio.create_task(queue.wait(job_id, 20))
        await asyncio.sleep(0.05)
        await queue.cancel(job_id)
        return (await waiting).status

    assert asyncio.run(stay(asyncio.run(leave()))) is Status.CANCELLED
    asyncio.run(queue.close())


def test_it_may_be_used_again_after_it_was_closed_and_be_forgotten_without(url: str) -> None:
    async def use(queue: AsyncQueue) -> None:
        await queue.enqueue("tag")
        await queue.close()
        await queue.close()
        until(lambda: not our_threads())
        assert await queue.count() == 1

    asyncio.run(use(AsyncQueue(url)))
    until(lambda: not our_threads())


def test_it_can_be_given_to_another_process(url: str) -> None:
    queue = pickle.loads(pickle.dumps(AsyncQueue(url, create=False)))
    assert queue.url == url
    with pytest.raises(StoreError, match="no such database"):
        asyncio.run(queue.count())


def test_middleware_sees_every_job_in_the_context_of_its_caller(url: str) -> None:
    trace = contextvars.ContextVar("trace", default="none")

    class Tracing:
        def on_enqueue(self, job: Any) -> None:
            job.meta["trace"] = trace.get()

    async def use() -> None:
        async with AsyncQueue(url, middleware=[Tracing]) as queue:
            enqueue = queue.enqueue

            async def traced(name: str) -> list[int]:
                trace.set(name)
                return [await enqueue("tag"), (await queue.put("tag"))[0], *await queue.enqueue_many("tag", [1, 2])]

            for name, ids in zip("ab", await asyncio.gather(traced("a"), traced("b")), strict=True):
                assert [job.meta for job in await queue.jobs(ids=ids)] == [{"trace": name}] * 4

    asyncio.run(use())


def test_a_child_uses_it_after_a_fork(url: str) -> None:
    queue = AsyncQueue(url)

    async def use() -> Status:
        job_id = await queue.enqueue("tag")
        waiting = asyncio.create_task(queue.wait(job_id, 20))
        await asyncio.sleep(0.05)
        await queue.cancel(job_id)
        return (await waiting).status

    assert asyncio.run(use()) is Status.CANCELLED
    children = [_forked(use) for _ in range(5)]
    assert asyncio.run(use()) is Status.CANCELLED
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 5
    asyncio.run(queue.close())
    with Queue(url) as after:
        assert after.count(status="cancelled") == 7


def _forked(use: Callable[[], Coroutine[Any, Any, Status]]) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, from Python 3.12 on: that is the subject
        child = os.fork()
    if child == 0:
        signal.alarm(30)
        code = 1
        try:
            code = 0 if asyncio.run(use()) is Status.CANCELLED else 2
        finally:
            os._exit(code)
    return child
