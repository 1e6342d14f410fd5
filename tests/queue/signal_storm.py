"""A program whose main thread is interrupted again and again while it uses a queue that other threads use, too.

    python -m tests.queue.signal_storm DATABASE alone|raise|nest|both SECONDS SEED

The handler raises, uses the queue, or either. With `alone` it raises, no other thread waits, and others commit all the
time. What went wrong is printed, a line for each kind of thing, and then how often what went well.
"""

from __future__ import annotations

import collections
import contextlib
import faulthandler
import random
import signal
import sqlite3
import sys
import threading
import time
from collections.abc import Callable

from supervisor import Queue, Status, WaitTimeout
from supervisor.client.connections import Guard, NotReentrant
from tests.queue.conftest import end

LIMIT = 10.0  # seconds after which somebody hangs


class Alarm(Exception):
    pass


class Storm:
    def __init__(self, path: str, kind: str, seed: int) -> None:
        self.path, self.kind = path, kind
        self.queue = Queue(f"sqlite:///{path}")
        self.random = random.Random(seed)
        self.wrong: collections.Counter[str] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()
        self.armed = False
        self.depth = 0
        self.raised = 0  # by the handler, since it was armed
        self.stopping, self.ended = threading.Event(), threading.Event()
        self.never = self.queue.enqueue("never")
        self.waiting = [] if kind == "alone" else [*[self.wait_too] * 3, self.stand_by]

    def work(self) -> None:
        """Ends the jobs, as another program would."""
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=LIMIT)) as other:
            while not self.ended.wait(0.002):
                for (job_id,) in other.execute(
                    "SELECT id FROM jobs WHERE type = 'tag' AND status = 'pending'"
                ).fetchall():
                    end(other, job_id)
                if self.kind == "alone":
                    other.execute("UPDATE jobs SET priority = 1 WHERE id = ?", (self.never,))

    def wait_too(self) -> None:
        while not self.stopping.is_set():
            self.run_one("beside")

    def stand_by(self) -> None:
        try:
            job = self.queue.wait(self.never)
            if job.status is not Status.DONE:
                self.wrong[f"bystander: {job.status}"] += 1
        except Exception as error:
            self.wrong[f"bystander: {error!r}"] += 1

    def run_one(self, who: str) -> None:
        try:
            if self.queue.run("tag", timeout=LIMIT) != [1]:
                self.wrong[f"{who}: another result"] += 1
            self.counts[who] += 1
        except Alarm:
            raise
        except NotReentrant:
            if who != "nested":
                self.wrong[f"{who}: NotReentrant"] += 1
            self.counts["refused"] += 1
        except Exception as error:
            if isinstance(error.__context__, Alarm):  # it came amid a write, and what clears up after that has failed
                self.counts["hidden"] += 1
                raise error.__context__ from None
            self.wrong[f"{who}: {error!r}"] += 1

    def handle(self, number: int, frame: object) -> None:
        if not self.armed:
            return
        if self.kind in ("alone", "raise") or (self.kind == "both" and self.random.random() < 0.5):
            self.raised += 1
            raise Alarm
        if self.depth < 2:
            self.depth += 1
            try:
                self.run_one("nested")
            finally:
                self.depth -= 1

    def interrupted(self, call: Callable[[], object]) -> None:
        again = self.random.choice((0.05, self.random.uniform(0.0003, 0.01)))
        signal.setitimer(signal.ITIMER_REAL, self.random.uniform(0.0001, 0.006), again)
        try:
            self.armed = True
            call()
        finally:
            self.armed = False

    def once(self) -> None:
        calls = {
            "wait": lambda: self.queue.wait(self.never),
            "events": lambda: list(self.queue.events(self.never)),
            "follow": lambda: list(self.queue.follow(self.never)),
            "run": lambda: self.run_one("main"),
        }
        name = self.random.choice(["run"] if self.kind == "nest" else [*calls])
        self.raised = self.depth = 0
        try:
            self.interrupted(calls[name])
        except Alarm:
            self.counts["alarms"] += 1
        except Exception as error:
            self.wrong[f"{name}: {error!r}"] += 1
        else:
            if self.raised:
                self.wrong[f"{name}: an alarm was swallowed"] += 1

    def ignored(self, found: sys.UnraisableHookArgs) -> None:
        """In a finalizer: Python drops it there."""
        if isinstance(found.exc_value, Alarm):
            self.raised -= 1

    def run(self, seconds: float) -> None:
        worker = threading.Thread(target=self.work)
        others = [threading.Thread(target=target) for target in self.waiting]
        for thread in (worker, *others):
            thread.daemon = True
            thread.start()
        for call in (self.queue.wait, self.queue.follow):  # an interrupted import is not our subject
            with contextlib.suppress(WaitTimeout):
                list(call(self.never, timeout=0.01))  # type: ignore[call-overload]
        sys.unraisablehook = self.ignored
        signal.signal(signal.SIGALRM, self.handle)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.once()
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.run_one("at the end")
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None, timeout=LIMIT)) as other:
            end(other, self.never)
        self.stopping.set()
        for thread in others:
            thread.join(2 * LIMIT)
            if thread.is_alive():
                self.wrong["a thread hangs"] += 1
        self.ended.set()
        worker.join()
        self.queue.close()
        if self.queue._watcher.listening:
            self.wrong["somebody is still thought to wait"] += 1


def main(path: str, kind: str, seconds: str, seed: str) -> None:
    faulthandler.dump_traceback_later(float(seconds) + 4 * LIMIT, exit=True)
    if sys.version_info[:2] == (3, 14):
        threading._active_limbo_lock = Guard()  # it would lose this lock of its own, too
    storm = Storm(path, kind, int(seed))
    storm.run(float(seconds))
    for what, times in storm.wrong.items():
        sys.stdout.write(f"WRONG {times} times: {what}\n")
    sys.stdout.write(f"{dict(storm.counts)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
