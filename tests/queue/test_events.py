"""Those who wait for a job learn of its progress and of its end soon, and cost next to nothing until then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from supervisor import AsyncQueue, JobEvent, JobNotFound, Queue, Status, StoreError, WaitTimeout
from supervisor.store.base import ChangeFeed
from supervisor.store.sqlite import changes
from tests.queue.conftest import end, forked, quiet_fork, run
from tests.store.kit import until


class Reader(threading.Thread):
    """Reads all events of a job, on an event loop if `awaited`; `ended` is the error that ended them, if any."""

    def __init__(self, queue: Queue, job_id: int, *, awaited: bool = False) -> None:
        super().__init__()
        self.seen: SimpleQueue[JobEvent] = SimpleQueue()
        self.ended: Exception | None = None
        self._queue, self._job_id, self._awaited = queue, job_id, awaited
        self.start()

    def run(self) -> None:
        try:
            if self._awaited:
                asyncio.run(self._await())
            else:
                for event in self._queue.events(self._job_id):
                    self.seen.put(event)
        except Exception as error:
            self.ended = error

    async def _await(self) -> None:
        async for event in AsyncQueue.of(self._queue).events(self._job_id):
            self.seen.put(event)

    def next(self) -> JobEvent:
        return self.seen.get(timeout=20)

    def join(self, timeout: float | None = 20) -> None:
        super().join(timeout)
        assert not self.is_alive()


def threads() -> set[int]:
    """Of this process; those of Python and others."""
    return {int(thread.name) for thread in Path("/proc/self/task").iterdir()}


@pytest.mark.parametrize("awaited", [False, True])
def test_progress_comes_as_it_changes_and_last_the_end(queue: Queue, other: sqlite3.Connection, awaited: bool) -> None:
    job_id = queue.enqueue("tag")
    reader = Reader(queue, job_id, awaited=awaited)
    assert reader.next() == JobEvent(job_id, Status.PENDING, None, None)
    run(other, job_id)
    assert reader.next().status is Status.RUNNING
    for progress, text in ((0.25, "one"), (0.25, "two"), (0.75, None)):
        other.execute("UPDATE jobs SET progress = ?, progress_text = ? WHERE id = ?", (progress, text, job_id))
        assert reader.next() == JobEvent(job_id, Status.RUNNING, progress, text, token=1)
    other.execute("UPDATE jobs SET status = 'done', progress = 1, result = '{\"n\": 1}' WHERE id = ?", (job_id,))
    last = reader.next()
    reader.join()
    assert last == JobEvent(job_id, Status.DONE, 1.0, None, {"n": 1}, None, token=last.token)
    about = {"id": job_id, "status": "done", "attempt": 0, "progress": 1.0, "progress_text": None}
    assert last.as_json() == about | {"result": {"n": 1}, "error": None}
    assert JobEvent(7, Status.RUNNING, 0.5, "half", attempt=2).as_json() == (
        {"id": 7, "status": "running", "attempt": 2, "progress": 0.5, "progress_text": "half"}
    )
    assert (reader.seen.empty(), reader.ended) == (True, None)


def test_a_failure_carries_its_error(queue: Queue, other: sqlite3.Connection) -> None:
    job_id = queue.enqueue("tag")
    reader = Reader(queue, job_id)
    reader.next()
    end(other, job_id, "failed")
    reader.join()
    last = _rest(reader)[-1]
    assert (last.status, last.error) == (Status.FAILED, "no")


def _rest(reader: Reader) -> list[JobEvent]:
    found = []
    while not reader.seen.empty():
        found.append(reader.seen.get())
    return found


def test_a_finished_job_yields_its_end_at_once(queue: Queue, other: sqlite3.Connection) -> None:
    job_id = queue.enqueue("tag")
    end(other, job_id)
    assert list(queue.events(job_id)) == [JobEvent(job_id, Status.DONE, None, None, [1], token=2)]
    assert queue.wait(job_id, timeout=0).result == [1]


@pytest.mark.parametrize("awaited", [False, True])
def test_a_job_that_is_not_there_or_is_deleted_meanwhile_ends_them_with_a_clear_error(
    queue: Queue, other: sqlite3.Connection, awaited: bool
) -> None:
    unknown, reader = Reader(queue, 99, awaited=awaited), Reader(queue, queue.enqueue("tag"), awaited=awaited)
    reader.next()
    other.execute("DELETE FROM jobs")
    for each, sentence in ((unknown, "no job has the id 99"), (reader, "job 1 was deleted before it had finished")):
        each.join()
        assert isinstance(each.ended, JobNotFound)
        assert str(each.ended) == sentence
        assert each.ended.deleted is (each is reader)


@pytest.mark.parametrize("awaited", [False, True])
def test_a_wait_ends_when_its_time_is_up(queue: Queue, awaited: bool) -> None:
    def wait(job_id: int, timeout: float | None = None) -> object:
        return asyncio.run(AsyncQueue.of(queue).wait(job_id, timeout)) if awaited else queue.wait(job_id, timeout)

    with pytest.raises(JobNotFound):
        wait(99)
    job_id = queue.enqueue("tag")
    for timeout in (0, 0.05):
        with pytest.raises(WaitTimeout, match="has not finished within"):
            wait(job_id, timeout)
    assert queue.job(job_id).status is Status.PENDING


def test_a_job_that_is_retried_at_once_has_not_finished(queue: Queue, other: sqlite3.Connection) -> None:
    job_id = queue.enqueue("tag")
    end(other, job_id, "failed")
    reads = queue._connections.store(queue._connections.reader)
    found = reads.events

    def retried(ids: list[int]) -> dict[int, JobEvent]:
        events = found(ids)
        if events[job_id].status is Status.FAILED:
            queue.retry(job_id)
        return events

    reads.events = retried  # type: ignore[method-assign] - a moment that cannot be met from outside
    with pytest.raises(WaitTimeout):
        queue.wait(job_id, timeout=0.05)


def test_the_thread_that_looks_ends_soon_after_the_last_who_waits(queue: Queue, other: sqlite3.Connection) -> None:
    job_id = queue.enqueue("tag")
    before = threads()
    end(other, job_id)
    queue.wait(job_id)
    assert threads() == before  # there was nothing to wait for
    with pytest.raises(WaitTimeout):
        queue.wait(queue.enqueue("tag"), 0.05)
    assert len(threads() - before) == 1
    until(lambda: threads() == before)


def test_one_thread_looks_for_all_who_wait(
    queue: Queue, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    feeds, changes = 0, queue._engine.changes

    def counted(**options: bool) -> ChangeFeed:
        nonlocal feeds
        feeds += 1
        return changes(**options)

    monkeypatch.setattr(queue._engine, "changes", counted)
    ids = queue.enqueue_many("tag", range(20))
    readers = [Reader(queue, job_id) for job_id in ids for _ in range(2)]
    for reader in readers:
        reader.next()
    for number, job_id in enumerate(ids):
        end(other, job_id)
        for reader in readers[2 * number : 2 * number + 2]:
            reader.join()
            assert _rest(reader)[-1].status is Status.DONE
    assert feeds == 1


def test_who_reads_on_late_holds_up_nobody(queue: Queue, other: sqlite3.Connection) -> None:
    slow, quick = queue.enqueue_many("tag", range(2))
    events = queue.events(slow)
    next(events)
    reader: list[Reader] = []

    def begin() -> None:
        until(lambda: queue._watcher.listening)
        reader.append(Reader(queue, quick))
        reader[0].next()
        until(lambda: len(queue._watcher.present()) == 2)
        run(other, slow)

    beginning = threading.Thread(target=begin)
    beginning.start()
    assert next(events).status is Status.RUNNING
    beginning.join()
    end(other, quick)  # while this thread does not read
    reader[0].join()
    assert _rest(reader[0])[-1].status is Status.DONE
    end(other, slow)
    assert [event.status for event in events] == [Status.DONE]


class Interrupted(Exception):
    pass


@contextlib.contextmanager
def on_alarm(queue: Queue, handler: Callable[[], object], first: Callable[[], object] = int) -> Iterator[None]:
    """The handler runs in this thread while it waits, after another thread has called `first`."""
    before = signal.signal(signal.SIGALRM, lambda *_: handler())

    def ring() -> None:
        until(lambda: queue._watcher.listening)
        first()
        time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGALRM)

    thread = threading.Thread(target=ring)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)


def test_who_is_interrupted_disturbs_nobody_else(queue: Queue, other: sqlite3.Connection) -> None:
    first, second = queue.enqueue_many("tag", range(2))

    def follow() -> None:
        readers.append(Reader(queue, second))
        until(lambda: len(queue._watcher.present()) == 2)

    def interrupt() -> None:
        raise Interrupted

    readers: list[Reader] = []
    with pytest.raises(Interrupted), on_alarm(queue, interrupt, follow):
        queue.wait(first, 20)
    end(other, second)
    readers[0].join()
    assert _rest(readers[0])[-1].status is Status.DONE


def test_a_signal_handler_may_wait_while_its_thread_waits(queue: Queue, other: sqlite3.Connection) -> None:
    first, second = queue.enqueue_many("tag", range(2))
    seen = []

    def wait() -> None:
        ending = threading.Timer(0.2, lambda: [end(other, job_id) for job_id in (first, second)])
        ending.start()
        seen.append(queue.wait(second, 20).status)
        ending.join()

    with on_alarm(queue, wait):
        seen.append(queue.wait(first, 20).status)
    assert seen == [Status.DONE] * 2


def test_a_signal_handler_may_fork_while_its_thread_waits(queue: Queue, other: sqlite3.Connection) -> None:
    job_id = queue.enqueue("tag")
    children: list[int] = []

    def fork() -> None:
        children.append(quiet_fork())
        if not children[0]:
            signal.alarm(0)
            queue.enqueue("child")

    with on_alarm(queue, fork):
        ending = threading.Thread(target=lambda: (until(lambda: queue.count("child") == 1), end(other, job_id)))
        ending.start()
        status = None
        try:
            status = queue.wait(job_id, 20).status
        finally:
            if children == [0]:
                os._exit(0 if status is Status.DONE else 1)
    ending.join()
    assert status is Status.DONE
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0


def test_nothing_stays_open_after_the_queue_and_the_last_who_reads(url: str, other: sqlite3.Connection) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    def once() -> None:
        queue = Queue(url)
        job_id = queue.enqueue("tag")
        events = queue.events(job_id)
        next(events)
        starting = threading.Timer(0.05, run, (other, job_id))
        starting.start()
        assert next(events).status is Status.RUNNING
        starting.join()
        queue.close()
        del queue
        events.close()

    once()
    time.sleep(1.5)  # the thread that looked has ended
    before = descriptors()
    once()
    until(lambda: descriptors() == before)


def test_the_end_is_noticed_by_the_commit_and_not_by_polling(
    queue: Queue, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "_SAFETY", 10.0)
    took = []
    for _ in range(4):  # a busy machine may take the writer away in the middle of a commit
        job_id = queue.enqueue("tag")
        reader = Reader(queue, job_id)
        reader.next()
        time.sleep(0.3)  # the window of checks after the enqueue is over
        end(other, job_id)
        began = time.monotonic()
        reader.join()
        took.append(time.monotonic() - began)
    assert min(took) < 3


def test_without_hints_it_is_found_by_polling(
    queue: Queue, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(changes, "FileWatch", none_left)
    job_id = queue.enqueue("tag")
    reader = Reader(queue, job_id)
    reader.next()
    end(other, job_id)
    reader.join()


def test_idle_listeners_use_no_cpu(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    seat = queue._watcher.seat
    producer = queue._connections.store(seat)
    found = producer.events

    def counted(ids: list[int]) -> dict[int, JobEvent]:
        nonlocal looks
        looks += 1
        return found(ids)

    ids = queue.enqueue_many("tag", range(20))
    monkeypatch.setattr(producer, "events", counted)
    readers = [Reader(queue, job_id) for job_id in ids]
    for reader in readers:
        reader.next()
    until(lambda: len(queue._watcher.present()) == 20 and not queue._watcher._new)
    time.sleep(0.5)
    begun, cpu = looks, time.process_time()
    time.sleep(2.0)
    assert looks == begun
    assert time.process_time() - cpu < 0.2  # of two seconds; a loop that polls uses ten times as much
    queue.enqueue_many("other", range(3))
    until(lambda: looks > begun)
    for job_id in ids:
        queue.cancel(job_id)
    for reader in readers:
        reader.join()


def test_a_database_that_goes_away_ends_the_wait_and_a_replaced_one_is_looked_at(
    queue: Queue, other: sqlite3.Connection, path: Path
) -> None:
    job_id = queue.enqueue("tag")
    other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copy(path, path.with_name("copy.db"))
    with contextlib.closing(sqlite3.connect(path.with_name("copy.db"))) as copy, copy:
        copy.execute("UPDATE jobs SET status = 'done' WHERE id = ?", (job_id,))
    reader = Reader(queue, job_id)
    reader.next()
    path.with_name("copy.db").rename(path)
    for name in ("app.db-wal", "app.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    reader.join()
    assert _rest(reader)[-1].status is Status.DONE

    job_id = queue.enqueue("tag")
    reader = Reader(queue, job_id)
    reader.next()
    path.unlink()
    reader.join()
    assert isinstance(reader.ended, StoreError)


def test_waiting_goes_on_in_a_child_after_a_fork(queue: Queue, other: sqlite3.Connection, path: Path) -> None:
    job_id, second = queue.enqueue_many("tag", range(2))
    reader = Reader(queue, second)
    reader.next()
    events = queue.events(job_id)
    next(events)
    until(lambda: queue._watcher.listening)
    child = forked(lambda: _wait_in_child(queue, events, job_id))
    try:
        until(lambda: queue.count(type="child") == 1)
        end(other, job_id)
        assert [event.status for event in events][-1] is Status.DONE
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        end(other, second)
        reader.join()


def _wait_in_child(queue: Queue, events: Iterator[JobEvent], job_id: int) -> bool:
    queue.enqueue("child")
    return [event.status for event in events][-1] is Status.DONE and queue.wait(job_id, 20).status is Status.DONE
