"""Where workers tell what they have settled, who waits for a result hears it from them and not from the file."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from supervisor import AsyncQueue, Queue
from supervisor.client.subscription import Subscription
from supervisor.domain.job import Claim
from supervisor.domain.settlement import done
from supervisor.maintenance.deaths import DeadClaims
from supervisor.store.base import SettledAndClaimed
from supervisor.store.sqlite import changes
from supervisor.store.sqlite.changes import SqliteChanges, SqliteSettled
from supervisor.system import settled_notice
from supervisor.worker.exchange import Exchange
from tests.queue.conftest import end
from tests.store.kit import until

NEVER = 60.0  # seconds


@pytest.fixture(autouse=True)
def notices(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """This process is supervisor, worker and admin process at once."""
    for name, value in (("_address", b""), ("_sending", None), ("_receiving", None), ("_listening", False)):
        monkeypatch.setattr(settled_notice, name, value)
    settled_notice.hold()
    settled_notice.open_sender()
    yield settled_notice
    for one in (settled_notice._sending, settled_notice._receiving):
        assert one is not None
        one.close()


def pending(other: sqlite3.Connection) -> list[int]:
    return [row[0] for row in other.execute("SELECT id FROM jobs WHERE status = 'pending'")]


async def run_beside(queue: Queue, other: sqlite3.Connection, then: Callable[[], None], times: int = 1) -> float:
    """Run jobs together; when all are there, each ends and `then` is called. Returns how long that took to be known."""
    runs = asyncio.gather(*(AsyncQueue.of(queue).run("tag", timeout=NEVER) for _ in range(times)))

    def end_all() -> float:
        until(lambda: len(pending(other)) == times)
        time.sleep(0.2)  # they are waited for
        for job in pending(other):
            end(other, job)
        began = time.monotonic()
        then()
        return began

    began = await asyncio.to_thread(end_all)
    assert await runs == [[1]] * times
    return time.monotonic() - began


@contextlib.contextmanager
def listening(queue: Queue, job: int, told: threading.Event, *, just_made: bool) -> Iterator[None]:
    listener = Subscription(queue._watcher, job, told.set, only_end=True, just_made=just_made)
    queue._watcher.subscribe(listener)
    try:
        yield
    finally:
        queue._watcher.leave(listener)


class TestWhoWaits:
    def test_hears_of_the_end_from_the_worker(
        self, queue: Queue, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(SqliteSettled, "unhinted", NEVER)
        settled_notice.listen()
        assert asyncio.run(run_beside(queue, other, settled_notice.notify, times=20)) < NEVER / 4

    def test_for_a_job_that_has_ended_already_hears_it_at_once(self, queue: Queue, other: sqlite3.Connection) -> None:
        """Also beside others, for whom the next look is due later."""
        settled_notice.listen()
        first, *jobs = queue.enqueue_many("tag", [None] * 21)
        with listening(queue, first, looked := threading.Event(), just_made=False):
            assert looked.wait(20)
            took = []
            for job in jobs:
                end(other, job)
                began = time.monotonic()
                with listening(queue, job, told := threading.Event(), just_made=True):
                    assert told.wait(20)
                took.append(time.monotonic() - began)
        assert median(took) < changes._OTHERS / 3

    def test_sees_what_nobody_told(self, queue: Queue, other: sqlite3.Connection) -> None:
        settled_notice.listen()
        assert asyncio.run(run_beside(queue, other, lambda: None)) < NEVER / 4

    def test_learns_of_jobs_that_end_before_it_waits(self, queue: Queue, other: sqlite3.Connection) -> None:
        """A trigger ends them with the commit that inserts them; some are waited for while others are looked at."""
        settled_notice.listen()
        other.execute(
            "CREATE TRIGGER at_once AFTER INSERT ON jobs WHEN new.type = 'quick' "
            "BEGIN UPDATE jobs SET status = 'done', result = '[2]' WHERE id = new.id; END"
        )

        async def both() -> None:
            one = asyncio.ensure_future(AsyncQueue.of(queue).run("tag", timeout=NEVER))
            await asyncio.sleep(0.2)
            quick = [await AsyncQueue.of(queue).run("quick", timeout=10) for _ in range(3)]
            assert quick == [[2]] * 3
            await asyncio.to_thread(end, other, pending(other)[0])
            assert await one == [1]

        asyncio.run(both())

    def test_in_a_process_that_does_not_listen_watches_the_file(
        self, queue: Queue, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(changes, "_SAFETY", NEVER)
        assert asyncio.run(run_beside(queue, other, lambda: None)) < NEVER / 4

    def test_watches_the_file_beside_other_supervisors(self, queue: Queue, other: sqlite3.Connection) -> None:
        """Their workers do not tell this process."""
        queue.enqueue("tag")
        settled_notice.listen()
        engine = queue._engine
        kinds = []
        with contextlib.closing(engine.changes()) as feed:  # for those who want to know of new jobs
            kinds.append(type(feed))
        for number in range(3):
            feed = engine.changes(ends=True)
            kinds.append(type(feed))
            feed.close()
            insert_supervisor(other, f"s{number}")
        assert kinds == [SqliteChanges, SqliteSettled, SqliteSettled, SqliteChanges]


def insert_supervisor(other: sqlite3.Connection, identity: str) -> None:
    columns = [row for row in other.execute("PRAGMA table_info(job_supervisors)") if row[3] and row[4] is None]
    values = {row[1]: identity if row[1] == "id" else (1 if row[2].upper() != "TEXT" else "x") for row in columns}
    values["id"] = identity
    names = ", ".join(values)
    other.execute(
        f"INSERT INTO job_supervisors ({names}) VALUES ({', '.join('?' * len(values))})", list(values.values())
    )


class TestNotice:
    def heard(self) -> int:
        hearing = settled_notice._receiving
        assert hearing is not None
        count = 0
        try:
            while True:
                hearing.recv(1)
                count += 1
        except BlockingIOError:
            return count

    def test_is_heard_however_often(self) -> None:
        for _ in range(10_000):  # far more than the kernel keeps
            settled_notice.notify()
        assert self.heard() >= 1
        settled_notice.notify()
        assert self.heard() == 1

    def test_without_a_supervisor_does_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patched:
            for name, value in (("_address", b""), ("_sending", None)):
                patched.setattr(settled_notice, name, value)
            settled_notice.notify()
            assert settled_notice._sending is None
        assert self.heard() == 0

    @pytest.mark.parametrize("what", ["file", "pipe", "stream", "nothing"])
    def test_writes_nothing_into_what_a_handler_has_put_in_its_place(self, tmp_path: Path, what: str) -> None:
        assert settled_notice._sending is not None
        number = settled_notice._sending.fileno()
        file = tmp_path / "file"
        file.write_bytes(b"before")
        with contextlib.ExitStack() as stack:
            kept = os.dup(number)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, number)
            stored = stack.enter_context(file.open("r+b"))
            ends = os.pipe()
            reader, writer = (
                stack.enter_context(os.fdopen(ends[0], "rb")),
                stack.enter_context(os.fdopen(ends[1], "wb")),
            )
            ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
            theirs.setblocking(False)
            os.set_blocking(reader.fileno(), False)
            place = {"file": stored, "pipe": writer, "stream": ours}.get(what)
            if place is None:
                os.close(number)
            else:
                os.dup2(place.fileno(), number)
            settled_notice.notify()
            assert file.read_bytes() == b"before"
            assert reader.read(1) is None
            with pytest.raises(BlockingIOError):
                theirs.recv(1)

    def test_is_heard_from_the_program_that_a_workers_process_becomes(self) -> None:
        address = settled_notice.address().hex()
        use = "from supervisor.system.settled_notice import notify, take_over"
        script = f"import sys; {use}; take_over(bytes.fromhex(sys.argv[1])); notify()"
        subprocess.run([sys.executable, "-c", script, address], check=True, timeout=60)
        assert self.heard() == 1


class Store:
    """Settles whatever it is given."""

    def settle_and_claim(self, *_: Any, **__: Any) -> SettledAndClaimed:
        return SettledAndClaimed([], [])

    def register(self, record: Any) -> None: ...

    def be_patient(self, seconds: float | None) -> None: ...

    def settle_dead(self, *_: Any, **__: Any) -> int:
        return 1


class TestWhoNotifies:
    @pytest.fixture
    def notices_sent(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        found: list[int] = []
        monkeypatch.setattr(settled_notice, "notify", lambda: found.append(1))
        return found

    def test_a_worker_that_has_settled_jobs_between_two_runs_and_beside_one(self, notices_sent: list[int]) -> None:
        nobody: Any = MagicMock()
        engine: Any = SimpleNamespace(claims=lambda **_: Store())
        pool: Any = SimpleNamespace(
            types=("tag",), capabilities=(), min_priority=None, lock_time=10.0, heartbeat_timeout=60.0, policy=nobody
        )
        gate: Any = SimpleNamespace(is_open=lambda: True, generation=0, now=lambda: 0.0)
        exchange = Exchange(engine, nobody, pool, nobody, gate, nobody, nobody, nobody)
        exchange.open()
        exchange.turn(1)
        assert notices_sent == []
        exchange.held.ended(done(Claim(1, 1, "tag", "{}", 1, None, 0), None))
        exchange.turn(1)
        assert notices_sent == [1]
        exchange.held.ended(done(Claim(2, 1, "tag", "{}", 1, None, 0), None))
        exchange.aside(1.0)
        assert notices_sent == [1, 1]

    def test_the_maintainer_for_a_dead_worker(self, notices_sent: list[int]) -> None:
        locks: Any = Store()
        counter: Any = SimpleNamespace(settled=lambda *_, **__: None)
        locks.held_by = lambda incarnation: []
        DeadClaims(locks, counter).settle("i", "w", lambda held: [], 0.0)
        assert notices_sent == [1]
