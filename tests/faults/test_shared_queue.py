"""One Queue in many threads and across forks, and a caller's own transaction in between."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import sqlite3
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from supervisor import Queue
from supervisor.client import connections
from supervisor.domain.errors import StoreBusy
from tests.stopwatch import Stopwatch


@pytest.mark.fault(56)
def test_a_transaction_of_the_callers_and_plain_calls_never_wait_for_each_other(tmp_path: Path) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    queue.enqueue("tag")
    over, slowest, errors = time.monotonic() + 3.0, [0.0], list[Exception]()
    counts = [0, 0, 0]

    def timed(index: int, call: object) -> None:
        try:
            while time.monotonic() < over:
                watch = Stopwatch()
                call()  # type: ignore[operator]
                slowest.append(watch.seconds())
                counts[index] += 1
        except Exception as error:
            errors.append(error)

    def transaction() -> None:
        with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as own:
            own.execute("BEGIN IMMEDIATE")
            queue.enqueue("tag", connection=own)
            time.sleep(0.002)
            own.execute("COMMIT")
        time.sleep(0.002)

    calls = [transaction, lambda: queue.enqueue("tag"), lambda: queue.job(1)]
    threads = [threading.Thread(target=timed, args=(index, call)) for index, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert max(slowest) < 1.0
    assert min(counts) > 20


@pytest.mark.fault(56)
def test_a_look_at_a_job_does_not_wait_for_an_enqueue_that_waits_for_a_transaction(tmp_path: Path) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    job = queue.enqueue("tag")
    assert queue.job(job).type == "tag"
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as own:
        own.execute("BEGIN IMMEDIATE")
        waiting = threading.Thread(target=queue.enqueue, args=("waits",))
        waiting.start()
        try:
            looked = 0
            until = time.monotonic() + 0.5
            while time.monotonic() < until:
                assert queue.job(job).type == "tag"
                looked += 1
            assert waiting.is_alive()
            assert looked > 5
        finally:
            own.execute("ROLLBACK")
            waiting.join(30)
    assert queue.job(2).type == "waits"


@pytest.mark.fault(57)
def test_a_fork_waits_for_the_present_call_and_not_for_thread_after_thread(tmp_path: Path) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    over, calls = threading.Event(), []

    def call() -> None:
        while not over.is_set():
            queue._connections.using(queue._connections.writer, lambda _: calls.append(time.sleep(0.001)))

    cpus = os.sched_getaffinity(0)  # on one CPU, whoever releases a lock can take it again before who waits for it
    os.sched_setaffinity(0, {min(cpus)})
    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    meanwhile = []
    try:
        for _ in range(50):
            before = len(calls)
            connections._before_fork()
            meanwhile.append(len(calls) - before)
            connections._after_fork_in_parent()
            time.sleep(0.002)
    finally:
        os.sched_setaffinity(0, cpus)
        over.set()
        for thread in threads:
            thread.join()
    assert sorted(meanwhile)[25] <= 3, sorted(meanwhile)


@pytest.mark.fault(57)
def test_no_child_of_a_fork_hangs_while_another_thread_enqueues(tmp_path: Path) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    queue.enqueue("tag")
    over = threading.Event()

    def enqueue() -> None:
        while not over.is_set():
            queue.enqueue("tag")

    thread = threading.Thread(target=enqueue)
    thread.start()
    codes = []
    try:
        for _ in range(40):
            pid = os.fork()
            if pid == 0:
                signal.alarm(10)
                code = 1
                try:
                    queue.enqueue("child")
                    queue.close()
                    code = 0
                except Exception:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            codes.append(os.waitpid(pid, 0)[1])
    finally:
        over.set()
        thread.join()
    assert codes == [0] * 40
    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        assert raw.execute("SELECT count(*) FROM jobs WHERE type = 'child'").fetchone() == (40,)
        assert raw.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.fault(57)
@pytest.mark.parametrize(
    "process_of", [multiprocessing.get_context("fork").Process, multiprocessing.get_context("spawn").Process]
)
def test_a_queue_can_be_given_to_another_process(tmp_path: Path, process_of: Any) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db")
    queue.enqueue("tag")
    process = process_of(target=queue.enqueue, args=("child",))
    process.start()
    process.join(30)
    assert process.exitcode == 0
    assert queue.job(2).type == "child"
    assert pickle.loads(pickle.dumps(queue)).job(2).type == "child"


@pytest.mark.fault(57)
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_a_child_that_was_forked_inside_a_transaction_does_not_wait_for_ever(tmp_path: Path, mode: str) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/jobs.db", busy_timeout=0.2)
    if mode == "wal":
        queue.enqueue("tag")
    context = multiprocessing.get_context("fork")
    committed, (answer, told) = context.Event(), context.Pipe(duplex=False)

    def enqueue() -> None:
        committed.wait(30)
        with pytest.raises(StoreBusy):
            queue.enqueue("child")
        told.send("busy")

    with contextlib.closing(sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)) as own:
        own.execute("BEGIN IMMEDIATE")
        own.execute("CREATE TABLE own (x)")
        process = context.Process(target=enqueue)
        process.start()
        own.execute("COMMIT")
        committed.set()
        assert answer.poll(30)
        assert answer.recv() == "busy"
        process.join(30)
    assert queue.enqueue("tag")


@pytest.mark.fault(75)
@pytest.mark.parametrize("commit", [True, False])
def test_the_first_enqueue_in_an_open_transaction_makes_the_tables_in_it(tmp_path: Path, commit: bool) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/app.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as own:
        own.execute("CREATE TABLE orders (id INTEGER)")
        own.execute("BEGIN IMMEDIATE")
        watch = Stopwatch()
        job = queue.enqueue("tag", connection=own)
        assert watch.seconds() < 2.0
        own.execute("COMMIT" if commit else "ROLLBACK")
    if commit:
        assert queue.job(job).type == "tag"
    assert queue.enqueue("tag") == (2 if commit else 1)


@pytest.mark.fault(75)
def test_tables_can_be_made_before(tmp_path: Path) -> None:
    queue = Queue(f"sqlite:///{tmp_path}/app.db")
    queue.create_tables()
    with contextlib.closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as own:
        own.execute("BEGIN IMMEDIATE")
        assert queue.enqueue("tag", connection=own) == 1
        own.execute("COMMIT")
