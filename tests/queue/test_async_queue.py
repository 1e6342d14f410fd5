"""AsyncQueue: the methods of Queue, awaited, and the event loop is never held up."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import contextvars
import functools
import gc
import inspect
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from supervisor import (
    AsyncQueue,
    Conflict,
    InvalidJob,
    JobNotFound,
    Queue,
    Status,
    StoreError,
    task,
)
from supervisor.client.connections import Connections, Seat
from supervisor.domain.errors import StoreGone
from supervisor.domain.job import NewJob
from supervisor.store.base import Producer
from supervisor.store.sqlite.producer import SqliteProducer
from tests.fresh import make_tables
from tests.queue.conftest import forked
from tests.queue.test_events import threads as threads_of_process
from tests.store.kit import until

HELD = 2.0  # seconds for which another program holds the write lock


_earlier: list[threading.Thread] = []  # those of other tests: an application may keep its queue


def our_threads() -> list[str]:
    """Without those of queues that are forgotten: an error may hold one in a cycle."""
    gc.collect()
    threads = [thread for thread in threading.enumerate() if thread not in _earlier]
    return [thread.name for thread in threads if thread.name.startswith("supervisor_")]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    _earlier[:] = threading.enumerate()
    yield
    until(lambda: not our_threads())


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run_test(*args: Any, **fixtures: Any) -> None:
        asyncio.run(test(*args, **fixtures))

    return run_test


class Beat(NamedTuple):
    """A sleep of an event loop for a millisecond. Seconds: when it should have ended and when it did, what its thread
    has used of a CPU in between, and for how long it has waited for one.
    """

    due: float
    ended: float
    cpu: float
    waited: float

    @property
    def late(self) -> float:
        return self.ended - self.due


async def beats(found: list[Beat]) -> None:
    stat = Path("/proc/thread-self/schedstat")
    while True:
        due, cpu, waited = time.monotonic() + 0.001, time.thread_time(), int(stat.read_text().split()[1])
        await asyncio.sleep(0.001)
        ended = time.monotonic()
        waited = int(stat.read_text().split()[1]) - waited
        found.append(Beat(due, ended, time.thread_time() - cpu, waited / 1e9))


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Callable[[], float]]:
    """Says for how long this event loop was held at most, in seconds: by what it ran, and not by the machine.

    A busy machine holds up every thread: so the time for which this thread waited for a CPU does not count, nor that
    for which an idle event loop in another thread was late, too.
    """
    own, control, over = list[Beat](), list[Beat](), threading.Event()

    async def idle() -> None:
        beating = asyncio.create_task(beats(control))
        while not over.is_set():
            await asyncio.sleep(0.05)
        beating.cancel()

    idling = threading.Thread(target=asyncio.run, args=(idle(),))
    idling.start()
    beating = asyncio.create_task(beats(own))
    await asyncio.sleep(0.05)
    own.clear()
    try:
        yield lambda: max(_held(beat, control) for beat in own)
    finally:
        beating.cancel()
        over.set()
        idling.join()


def _held(beat: Beat, control: list[Beat]) -> float:
    late = beat.late - beat.waited
    if late > 0.001:
        overlaps = (min(beat.ended, each.ended) - max(beat.due, each.due) for each in control if each.late > 0.001)
        late -= sum(overlap for overlap in overlaps if overlap > 0)
    return max(late, beat.cpu)


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


@pytest.fixture
def many(url: str, path: Path) -> Iterator[AsyncQueue]:
    make_tables(path)
    yield (queue := AsyncQueue(url))
    asyncio.run(queue.close())


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The threads that have used a connection of a queue."""
    seen, store = set[int](), Connections.store

    def noting(connections: Connections, seat: Seat) -> Producer:
        seen.add(threading.get_ident())
        return store(connections, seat)

    monkeypatch.setattr(Connections, "store", noting)
    return seen


def test_it_has_every_method_of_a_queue_with_the_same_parameters() -> None:
    public = {name for name in dir(Queue) if not name.startswith("_")}
    assert public <= set(dir(AsyncQueue))
    queue = AsyncQueue("sqlite:////nowhere/app.db")
    for name in public - {"url", "schedules", "batches"}:
        method = getattr(queue, name)
        assert inspect.getdoc(method), name
        assert inspect.signature(method).parameters == inspect.signature(getattr(queue._queue, name)).parameters, name


def test_calls_do_what_those_of_a_queue_do_and_never_in_the_loops_thread(
    url: str, path: Path, threads: set[int]
) -> None:
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


def test_a_hundred_enqueues_beside_a_held_write_lock_hold_the_event_loop_for_less_than_five_milliseconds(
    url: str, path: Path, threads: set[int]
) -> None:
    async def once() -> float:
        async with AsyncQueue(url) as queue:
            await queue.enqueue("warm")
            before = await queue.count("tag")
            with write_lock_held(path, HELD):
                async with watched() as longest:
                    began = time.monotonic()
                    ids = await asyncio.gather(*(queue.enqueue("tag", {"n": number}) for number in range(100)))
                    took = time.monotonic() - began
                    held = longest()
            assert took > HELD / 2
            assert len(set(ids)) == 100
            assert sorted(job.payload["n"] for job in await queue.jobs(ids=ids)) == list(range(100))
            assert await queue.count("tag") == before + 100
        return held

    held: list[float] = []
    while not held or (held[-1] > 0.005 and len(held) < 5):  # what holds it, does so every time
        held.append(asyncio.run(once()))
    assert min(held) <= 0.005
    assert threading.get_ident() not in threads


class Puts:
    """The numbers of jobs in the transactions of all queues."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        put_each = SqliteProducer.put_each

        def noting(producer: SqliteProducer, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
            self.sizes.append(len(jobs))
            return put_each(producer, jobs)

        monkeypatch.setattr(SqliteProducer, "put_each", noting)


async def all_waiting(calls: list[Coroutine[Any, Any, Any]], puts: Puts) -> list[asyncio.Task[Any]]:
    """The calls, when the first one has begun and waits for the write lock."""
    tasks = [asyncio.create_task(call) for call in calls]
    while not puts.sizes:
        await asyncio.sleep(0.001)
    return tasks


@in_loop
async def test_enqueues_that_wait_at_the_same_time_share_one_transaction(
    path: Path, monkeypatch: pytest.MonkeyPatch, many: AsyncQueue
) -> None:
    puts = Puts(monkeypatch)

    with write_lock_held(path):
        tasks = await all_waiting([many.enqueue("tag", {"n": number}) for number in range(100)], puts)
    ids = await asyncio.gather(*tasks)
    assert [job.payload["n"] for job in await many.jobs("tag")] == list(range(99, -1, -1))
    assert ids == sorted(ids)
    assert len(puts.sizes) <= 2
    assert sum(puts.sizes) == 100


@in_loop
async def test_a_transaction_takes_a_bounded_number_of_jobs_and_of_bytes(
    path: Path, monkeypatch: pytest.MonkeyPatch, many: AsyncQueue
) -> None:
    puts = Puts(monkeypatch)

    with write_lock_held(path):
        tasks = await all_waiting([many.enqueue("tag", "x" * 400_000) for _ in range(20)], puts)
    await asyncio.gather(*tasks)
    assert max(puts.sizes) <= 3
    puts.sizes.clear()
    with write_lock_held(path):
        tasks = await all_waiting([many.enqueue("tag") for _ in range(1200)], puts)
    await asyncio.gather(*tasks)
    assert max(puts.sizes) == 500


@pytest.mark.parametrize("how", ["ABORT", "ROLLBACK", "FAIL", "IGNORE"])
def test_what_is_wrong_with_one_enqueue_touches_no_other(
    how: str, url: str, path: Path, queue: Queue, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = Puts(monkeypatch)
    word = "IGNORE" if how == "IGNORE" else f"{how}, 'no such orders'"
    other.execute(
        f"CREATE TRIGGER refuse BEFORE INSERT ON jobs WHEN NEW.type = 'order' BEGIN SELECT RAISE({word}); END"
    )

    class Strict:
        def on_enqueue(self, job: Any) -> None:
            if job.type == "odd":
                raise RuntimeError("an odd job")
            job.meta["seen"] = True

    async def use() -> None:
        async with AsyncQueue(url, middleware=[Strict]) as many:
            await many.create_tables()
            with write_lock_held(path):
                calls = [
                    many.enqueue("first"),
                    many.put("tag", unique_key="k"),
                    many.enqueue("no type"),
                    many.enqueue("order"),
                    many.put("tag", unique_key="k"),
                    many.enqueue("odd"),
                    many.enqueue("last"),
                ]
                tasks = await all_waiting(calls, puts)
            found = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(puts.sizes[:2]) == 6  # of one transaction, or two
            first, new, invalid, refused, known, odd, last = found
            assert isinstance(invalid, InvalidJob)
            assert isinstance(refused, Conflict if how == "IGNORE" else StoreError)
            assert (new, known) == ((new[0], True), (new[0], False))
            assert [job.type for job in await many.jobs(ids=[first, new[0], odd, last])] == [
                "last",
                "odd",
                "tag",
                "first",
            ]
            assert await many.count() == 4
            assert (await many.job(last)).meta == {"seen": True}

    asyncio.run(use())


@in_loop
async def test_one_cancelled_enqueue_of_many_leaves_the_others_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch, many: AsyncQueue
) -> None:
    puts = Puts(monkeypatch)

    with write_lock_held(path):
        tasks = await all_waiting([many.enqueue("tag", number) for number in range(10)], puts)
        begun = puts.sizes[0]
        tasks[0].cancel()
        tasks[9].cancel()
        await asyncio.sleep(0)
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(each) for each in (done[0], done[9])] == [asyncio.CancelledError] * 2
    assert all(isinstance(each, int) for each in done[1:9])
    kept = {job.payload for job in await many.jobs("tag")}
    assert kept == set(range(10 if begun == 10 else 9))


@in_loop
async def test_an_error_of_the_common_transaction_is_told_to_each(
    monkeypatch: pytest.MonkeyPatch, many: AsyncQueue
) -> None:
    def failing(producer: SqliteProducer, jobs: Sequence[NewJob]) -> list[tuple[int, bool] | Exception]:
        raise StoreGone("app.db: it is gone", replaced=True)

    monkeypatch.setattr(SqliteProducer, "put_each", failing)
    found = await asyncio.gather(*(many.enqueue("tag") for _ in range(5)), return_exceptions=True)
    assert [str(each) for each in found] == ["app.db: it is gone"] * 5
    assert all(isinstance(each, StoreGone) and each.replaced for each in found)


def test_a_task_is_enqueued_beside_a_full_default_executor_and_shares_the_transaction(
    url: str, path: Path, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    puts = Puts(monkeypatch)

    @task("tests.resize")
    def resize(path: str) -> None: ...

    async def use() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(executor := ThreadPoolExecutor(1))
        free = threading.Event()
        executor.submit(free.wait, 60)
        try:
            call = resize.options(queue=queue)
            with write_lock_held(path):
                tasks = await all_waiting([call.aenqueue(f"{number}.jpg") for number in range(20)], puts)
            assert len(set(await asyncio.gather(*tasks))) == 20
            assert len(puts.sizes) <= 2
        finally:
            free.set()

    asyncio.run(use())
    queue.close()


@in_loop
async def test_looks_do_not_wait_for_writers_nor_need_the_default_executor(path: Path, many: AsyncQueue) -> None:
    job_id = await many.enqueue("tag")
    loop = asyncio.get_running_loop()
    loop.set_default_executor(executor := ThreadPoolExecutor(1))
    free = threading.Event()
    executor.submit(free.wait, 30)
    with write_lock_held(path):
        writing = asyncio.create_task(many.enqueue("tag"))
        await asyncio.sleep(0.01)
        assert (await many.job(job_id)).type == "tag"
        assert await many.count("tag") == 1
        assert not writing.done()
    free.set()
    await writing


@in_loop
async def test_a_thousand_waiters_cost_one_thread_and_one_look(path: Path, many: AsyncQueue) -> None:
    ids = await many.enqueue_many("tag", range(1000))
    before = threads_of_process()
    waiters = [asyncio.create_task(many.wait(job_id, timeout=60)) for job_id in ids]
    await asyncio.sleep(0.2)
    assert not any(waiter.done() for waiter in waiters)
    assert len(threads_of_process() - before) == 1
    assert len(our_threads()) <= 3
    with contextlib.closing(sqlite3.connect(path, timeout=20)) as other, other:
        other.execute("UPDATE jobs SET status = 'done'")
    assert {job.status for job in await asyncio.gather(*waiters)} == {Status.DONE}


@in_loop
async def test_where_no_thread_can_be_started_that_is_said_and_does_not_last(
    monkeypatch: pytest.MonkeyPatch, many: AsyncQueue
) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    job_id = await many.enqueue("tag")
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "start_new_thread", refused)
        with pytest.raises(StoreError, match="can't start new thread"):
            await many.wait(job_id, 20)
    assert not many._queue._watcher.listening
    waiting = asyncio.create_task(many.wait(job_id, 20))
    await asyncio.sleep(0.01)
    await many.cancel(job_id)
    assert (await waiting).status is Status.CANCELLED


@in_loop
async def test_a_wait_that_is_cancelled_leaves_nobody_who_waits(many: AsyncQueue) -> None:
    job_id = await many.enqueue("tag")
    waiting = asyncio.create_task(many.wait(job_id))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not many._queue._watcher.listening
    await many.cancel(job_id)
    assert (await many.wait(job_id, timeout=0)).status is Status.CANCELLED


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


def test_a_queue_that_is_forgotten_at_the_end_of_the_program_needs_no_names_of_its_module(url: str) -> None:
    program = (
        "import asyncio, sys\nfrom supervisor import AsyncQueue\nfrom supervisor.client import lanes\n"
        "queue = AsyncQueue(sys.argv[1])\nprint(asyncio.run(queue.enqueue('tag')))\n"
        "vars(lanes).update(dict.fromkeys([name for name in vars(lanes) if name[:2] != '__']))\ndel queue\n"
    )  # as Python does at its end; by then, threads have stopped
    ran = subprocess.run([sys.executable, "-c", program, url], capture_output=True, text=True, check=False)
    assert (ran.stdout, "__del__" in ran.stderr) == ("1\n", False)


def test_it_can_be_given_to_another_process(url: str) -> None:
    queue = pickle.loads(pickle.dumps(AsyncQueue(url, create=False)))
    assert queue.url == url
    with pytest.raises(StoreError, match="the database does not exist"):
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
    children = [forked(lambda: asyncio.run(use()) is Status.CANCELLED) for _ in range(5)]
    assert asyncio.run(use()) is Status.CANCELLED
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 5
    asyncio.run(queue.close())
    with Queue(url) as after:
        assert after.count(status="cancelled") == 7
