"""`run`: a job's result in one call, whichever way the job or the waiting ends."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from supervisor import AsyncQueue, InvalidJob, JobFailed, Queue, QueueFull, StoreError, WaitTimeout
from supervisor.system import failpoints
from tests.queue.conftest import end
from tests.store.kit import until

Run = Callable[..., Any]


@pytest.fixture(params=["Queue", "AsyncQueue"])
def run(request: pytest.FixtureRequest, queue: Queue) -> Iterator[Run]:
    if request.param == "Queue":
        yield queue.run
        return

    async def awaited(*args: Any, **options: Any) -> Any:
        return await AsyncQueue.of(queue).run(*args, **options)

    yield lambda *args, **options: asyncio.run(awaited(*args, **options))


@pytest.fixture
def worker(other: sqlite3.Connection) -> Iterator[Callable[[str], threading.Thread]]:
    """Ends the next job in a state, in a thread."""
    threads = []

    def work(status: str) -> threading.Thread:
        def wait_and_end() -> None:
            until(lambda: pending(other))
            end(other, pending(other)[0], status)

        thread = threading.Thread(target=wait_and_end)
        thread.start()
        threads.append(thread)
        return thread

    yield work
    for thread in threads:
        thread.join(20)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """So many looks at waiting jobs fail."""

    def fail(times: int) -> None:
        monkeypatch.setenv(failpoints.VARIABLE, f"job_events.before=fail:error*{times}")
        failpoints._armed.cache_clear()

    yield fail
    failpoints._armed.cache_clear()


def pending(other: sqlite3.Connection) -> list[int]:
    return [row[0] for row in other.execute("SELECT id FROM jobs WHERE status = 'pending'")]


def states(other: sqlite3.Connection) -> list[str]:
    return [row[0] for row in other.execute("SELECT status FROM jobs ORDER BY id")]


def test_the_result_is_returned(run: Run, worker: Run) -> None:
    worker("done")
    assert run("tag", {"n": 1}, priority=3) == [1]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("failed", "job 1 has failed: no"),
        ("cancelled", "job 1 was cancelled: no"),
        ("quarantined", "job 1 is quarantined: no"),
    ],
)
def test_a_job_that_ends_without_a_result_is_an_error_with_the_job(
    run: Run, worker: Run, status: str, message: str
) -> None:
    worker(status)
    with pytest.raises(JobFailed) as failed:
        run("tag")
    assert str(failed.value) == message
    assert (failed.value.job.id, failed.value.job.status) == (1, status)


def test_when_the_time_is_up_the_job_continues(run: Run, other: sqlite3.Connection) -> None:
    with pytest.raises(WaitTimeout) as late:
        run("tag", timeout=0.05)
    assert (late.value.job_id, states(other)) == (1, ["pending"])


def test_when_the_time_is_up_the_job_is_cancelled_if_that_is_wanted(run: Run, other: sqlite3.Connection) -> None:
    with pytest.raises(WaitTimeout):
        run("tag", timeout=0.05, cancel=True)
    assert states(other) == ["cancelled"]


@pytest.mark.parametrize("key", ["unique_key", "idempotency_key"])
def test_a_job_that_others_may_wait_for_is_never_cancelled(run: Run, other: sqlite3.Connection, key: str) -> None:
    with pytest.raises(InvalidJob, match="cancel: give either cancel or a key"):
        run("tag", timeout=0.05, cancel=True, **{key: "k"})
    with pytest.raises(WaitTimeout):
        run("tag", timeout=0.05, **{key: "k"})
    assert states(other) == ["pending"]


def test_the_same_request_again_gets_the_result_of_the_first(run: Run, worker: Run, other: sqlite3.Connection) -> None:
    with pytest.raises(WaitTimeout):
        run("tag", {"n": 1}, timeout=0.05, idempotency_key="k")
    worker("done").join(20)
    assert run("tag", {"n": 1}, idempotency_key="k") == [1]
    assert states(other) == ["done"]


def test_the_key_of_another_request_is_refused(run: Run, queue: Queue, other: sqlite3.Connection) -> None:
    with pytest.raises(WaitTimeout):
        run("tag", {"n": 1}, timeout=0, idempotency_key="k")
    with pytest.raises(InvalidJob, match="idempotency_key: job 1 has it, with another payload"):
        run("tag", {"n": 2}, timeout=0, idempotency_key="k")
    assert states(other) == ["pending"]


def test_a_full_queue_refuses_at_once(run: Run, queue: Queue, other: sqlite3.Connection) -> None:
    queue.enqueue("tag")
    with pytest.raises(QueueFull):
        run("tag", max_waiting=1)
    assert states(other) == ["pending"]


def test_invalid_arguments_write_nothing(run: Run, other: sqlite3.Connection) -> None:
    for wrong in ({"timeout": "soon"}, {"max_waiting": 0}, {"priority": 101}, {"idempotency_key": ""}):
        with pytest.raises(InvalidJob):
            run("tag", **wrong)
    assert states(other) == []


def test_many_threads_each_get_their_own(queue: Queue, other: sqlite3.Connection) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = [threads.submit(queue.run, "tag", {"n": n}, timeout=20) for n in range(8)]
        until(lambda: len(pending(other)) == 8)
        other.execute("UPDATE jobs SET status = 'running'")
        other.execute("UPDATE jobs SET status = 'done', result = payload ->> 'n'")
        assert [result.result(20) for result in results] == list(range(8))


def cancelled(queue: Queue, begun: Callable[[], object], **options: Any) -> None:
    """A task that awaits a `run` is cancelled once it has begun."""

    async def main() -> None:
        async def run() -> Any:
            return await AsyncQueue.of(queue).run("tag", **options)

        task = asyncio.create_task(run())
        while not begun():
            await asyncio.sleep(0.002)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_cancelled_task_cancels_its_job_if_that_is_wanted(queue: Queue, other: sqlite3.Connection) -> None:
    cancelled(queue, lambda: pending(other))
    assert states(other) == ["pending"]
    cancelled(queue, lambda: len(pending(other)) == 2, cancel=True)
    until(lambda: states(other) == ["pending", "cancelled"])


def test_a_task_that_is_cancelled_while_its_job_is_inserted_leaves_none_behind(
    queue: Queue, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")  # the insert waits for this
    lane = queue._lanes["writer"]
    cancelled(queue, lambda: lane._runs and lane._calls.empty(), cancel=True)
    other.execute("COMMIT")
    queue.close()
    assert states(other) in ([], ["cancelled"])


def test_a_task_that_is_cancelled_after_its_time_is_up_leaves_no_job_behind(
    queue: Queue, other: sqlite3.Connection
) -> None:
    lane, busy, free = queue._lanes["writer"], threading.Event(), threading.Event()

    def keep_busy() -> None:
        busy.set()
        free.wait(20)

    def time_is_up() -> bool:
        if pending(other) and not busy.is_set():
            lane.call(keep_busy)
            busy.wait(20)
        return busy.is_set() and not lane._calls.empty()  # the cancel waits behind it

    cancelled(queue, time_is_up, cancel=True, timeout=0.3)
    free.set()
    until(lambda: states(other) == ["cancelled"])


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, TimeoutError, RuntimeError])
def test_a_signal_ends_the_waiting_and_cancels_the_job(
    queue: Queue, other: sqlite3.Connection, raised: type[BaseException]
) -> None:
    def interrupt() -> None:
        until(lambda: pending(other))
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def interrupted(number: int, frame: object) -> None:
        raise raised("the signal")

    before = signal.signal(signal.SIGINT, interrupted)
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        with pytest.raises(raised, match="the signal"):
            queue.run("tag", cancel=True)
    finally:
        thread.join(20)
        signal.signal(signal.SIGINT, before)
    assert states(other) == ["cancelled"]


def test_looks_that_fail_do_not_end_the_waiting(run: Run, worker: Run, failing: Callable[[int], None]) -> None:
    failing(3)
    worker("done")
    assert run("tag", {"n": 1}) == [1]


def test_a_database_that_cannot_be_read_is_waited_for_until_the_time_is_up(
    run: Run, other: sqlite3.Connection, failing: Callable[[int], None]
) -> None:
    failing(10_000)
    with pytest.raises(WaitTimeout) as late:
        run("tag", timeout=0.2)
    assert (late.value.job_id, states(other)) == (1, ["pending"])


@pytest.mark.parametrize(("cancel", "state"), [(False, "pending"), (True, "cancelled")])
def test_without_a_time_limit_the_error_names_the_job(
    run: Run, other: sqlite3.Connection, failing: Callable[[int], None], cancel: bool, state: str
) -> None:
    failing(10_000)
    with pytest.raises(StoreError, match="job 1 was enqueued, and its result is not known: ") as failed:
        run("tag", timeout=None, cancel=cancel)
    assert getattr(failed.value, "job_id", None) == 1
    until(lambda: states(other) == [state])


def test_a_job_that_cannot_be_made_durable_is_named(run: Run, path: Path, other: sqlite3.Connection) -> None:
    log, kept = path.with_name(f"{path.name}-wal"), path.with_name("kept")

    def take_away() -> None:
        until(lambda: pending(other))
        log.rename(kept)
        log.symlink_to(log)  # it cannot be opened

    thread = threading.Thread(target=take_away)
    thread.start()
    try:
        with pytest.raises(StoreError, match="job 1 was enqueued") as failed:
            run("tag", timeout=2)
    finally:
        thread.join(20)
        kept.rename(log)
    assert getattr(failed.value, "job_id", None) == 1
    assert states(other) == ["pending"]
