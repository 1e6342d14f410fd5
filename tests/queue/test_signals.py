"""A signal handler may raise, or use a queue, while its thread uses that: nobody hangs, and nothing is lost."""

from __future__ import annotations

import contextlib
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest

from supervisor import Queue, Status
from supervisor.client.connections import Guard
from supervisor.client.subscription import Subscription
from supervisor.domain.errors import QueueError
from supervisor.store.base import Producer
from tests.queue.conftest import end
from tests.store.kit import until

ROOT = Path(__file__).parents[2]


class Alarm(Exception):
    pass


class LimitReached(TimeoutError):
    """An OSError, but none of the system's."""


@pytest.fixture
def on_signal() -> Iterator[Callable[[Callable[[], object]], None]]:
    """What the handler of SIGUSR1 does."""
    before = signal.getsignal(signal.SIGUSR1)

    def set_handler(handler: Callable[[], object]) -> None:
        signal.signal(signal.SIGUSR1, lambda *_: handler())

    yield set_handler
    signal.signal(signal.SIGUSR1, before)


def test_in_the_middle_of_a_write_it_may_read_but_not_write(queue: Queue) -> None:
    job_id = queue.enqueue("tag")
    connections = queue._connections

    def handler(producer: Producer) -> Status:
        with pytest.raises(QueueError, match="cannot write in the middle"):
            queue.enqueue("tag")
        return queue.job(job_id).status

    def reading(producer: Producer) -> Status:
        return connections.using(connections.reader, handler)

    assert connections.using(connections.writer, handler) is Status.PENDING
    assert connections.using(connections.writer, reading) is Status.PENDING
    assert queue.count() == 1


def test_an_interrupted_write_leaves_no_transaction_open(queue: Queue, path: Path) -> None:
    queue.enqueue("tag")

    def work(producer: Producer) -> None:
        producer._connection.raw.execute("BEGIN IMMEDIATE")  # type: ignore[attr-defined]
        raise Alarm

    with pytest.raises(Alarm):
        queue._connections.using(queue._connections.writer, work)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as foreign:
        foreign.execute("UPDATE jobs SET priority = 1")
    assert queue.enqueue("tag") == 2


def test_a_lock_is_free_again_whatever_a_handler_raises(on_signal: Callable[[Callable[[], object]], None]) -> None:
    """In Python 3.14, `with` alone can forget a lock that it has just taken."""

    def raise_it() -> None:
        raise Alarm

    def strike(now: threading.Event) -> None:
        now.wait()
        time.sleep(0.0005)
        signal.pthread_kill(main, signal.SIGUSR1)

    on_signal(raise_it)
    until, main = time.monotonic() + 1, threading.get_ident()
    with ThreadPoolExecutor(1) as other:
        while time.monotonic() < until:
            lock, now = Guard(), threading.Event()
            striking = other.submit(strike, now)
            with contextlib.suppress(Alarm):
                now.set()
                while True:
                    with lock:
                        pass
            striking.result()
            assert other.submit(lock.acquire, timeout=0).result()
            other.submit(lock.release).result()


def test_news_that_were_told_without_the_bell_are_found_and_told_again(queue: Queue) -> None:
    rings = 0

    def ring() -> None:
        nonlocal rings
        rings += 1
        if rings == 1:
            raise Alarm

    event = next(queue.events(queue.enqueue("tag")))
    listener = Subscription(queue._watcher, 1, ring)
    with pytest.raises(Alarm):
        listener.tell(event)
    listener.tell(event)
    assert rings == 2
    assert listener.state() == event
    listener.tell(event)
    assert (rings, listener.state()) == (2, None)


def test_who_was_thrown_out_before_leaving_is_not_thought_to_wait(queue: Queue) -> None:
    wanted = Subscription(queue._watcher, queue.enqueue("tag"), int)
    queue._watcher.subscribe(wanted)
    assert queue._watcher.listening
    del wanted
    until(lambda: not queue._watcher.listening)


def test_it_may_wait_in_the_middle_of_any_call(queue: Queue, other: sqlite3.Connection) -> None:
    job_id = queue.enqueue("tag")
    connections = queue._connections

    def wait(producer: Producer) -> Status:
        ending = threading.Timer(0.1, end, (other, job_id))
        ending.start()
        status = queue.wait(job_id, 20).status
        ending.join()
        return status

    assert connections.using(connections.reader, wait) is Status.DONE


@pytest.mark.parametrize("kind", ["alone", "raise", "nest", "both"])
def test_a_storm_of_signals(path: Path, kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.queue.signal_storm", str(path), kind, "2", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ran.returncode == 0, ran.stderr
    assert "WRONG" not in ran.stdout, ran.stdout


@pytest.mark.parametrize("call", ["wait", "run"])
@pytest.mark.filterwarnings("error")
def test_an_interruption_before_the_first_step_of_a_call_is_silent(
    queue: Queue, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    calls = {"wait": lambda: queue.wait(1, 0), "run": lambda: queue.run("tag", timeout=0)}

    def interrupted_in(entered: int) -> bool:
        """Whether this many functions of the module were entered: Python handles a signal where one begins."""
        left = entered

        def trace(frame: FrameType, event: str, _: object) -> None:
            nonlocal left
            left -= frame.f_code.co_filename.endswith(("client/waiting.py", "client/queue.py"))
            if left == 0:
                left = -1
                raise Alarm

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            calls[call]()
        except Alarm:
            return True
        except QueueError:
            return False
        finally:
            sys.settrace(before)
        raise AssertionError("it has not waited")

    interrupted = [interrupted_in(n) for n in range(1, 7)]
    assert interrupted == [True] * 6
    assert unraisable == []
