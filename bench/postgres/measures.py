"""What is measured of each contestant on PostgreSQL."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psycopg

from bench import drain, processes, waiting
from bench.postgres import fences, steady
from bench.postgres.contestants import OURS, Contestant, OpenQueue
from bench.probe import tally
from bench.trial import Reading, Trial
from tests.postgres_server import Server

UNITS = {
    "throughput": "jobs/s",
    "dead workers": "workers",
    "enqueue": "jobs/s",
    "enqueue, many": "jobs/s",
    "latency": "ms",
    "latency after the call": "ms",
    "held back": "jobs/s",
    "held back, at the end": "jobs/s",
    "back after": "s",
    "fenced": "refused",
    "steady": "%",
    "claims over 20 ms": "%",
}
WORKERS = (1, 2, 8)
_IDLE = 2  # workers that wait for the job whose latency is measured
_LONGEST = 4.0  # seconds of one run of throughput
_BACK = 20.0  # seconds within which one must work again after a restart of the server
_PART = 5.0  # seconds: the part of a run with a held transaction that counts as its end


@dataclass(frozen=True)
class Course:
    """One run: the server, a scratch folder, how long a transaction is held, and how many jobs there are."""

    server: Server
    folder: Path
    held: float  # seconds
    share: float = 1.0  # of each contestant's size

    @contextlib.contextmanager
    def open(self, contestant: Contestant) -> Iterator[OpenQueue]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            url = self.server.fresh_database()
            try:
                yield OpenQueue(Path(folder), contestant, url)
            finally:
                self.server.drop_all()

    def jobs(self, contestant: Contestant) -> int:
        return int(contestant.size * self.share)


Measure = Callable[[Course, Contestant], Reading]


@dataclass(frozen=True)
class Measurement:
    """`about` says what is measured; `figure` is the first of its figures."""

    about: str
    figure: str
    cases: Mapping[str, Measure]


def trials(course: Course, contestants: Sequence[Contestant], only: Sequence[str]) -> list[tuple[str, Trial]]:
    """Each with its first figure. What is to be compared stands side by side."""
    found: list[tuple[str, Trial]] = []
    for name in only or MEASURES:
        what = MEASURES[name]
        for case, measure in what.cases.items():
            some = [OURS] if name == "steady" else contestants
            found += [(what.figure, Trial(one.name, case, partial(measure, course, one))) for one in some]
    return found


def _throughput(workers: int, course: Course, contestant: Contestant) -> Reading:
    jobs = course.jobs(contestant)
    with course.open(contestant) as queue:
        queue.fill(jobs)
        _settle_down(queue)
        with queue.workers(workers) as programs:
            count = drain.follow(queue.folder, jobs, _LONGEST, programs)
            dead = sum(program.poll() is not None for program in programs)
    return {"throughput": [count.rate], "dead workers": [dead]}


def _enqueue(course: Course, contestant: Contestant) -> Reading:
    one, many = int(500 * course.share), int(10_000 * course.share)
    with course.open(contestant) as queue:
        queue.seconds_to_fill(20)
        single = one / queue.seconds_to_fill(one)
        return {"enqueue": [single], "enqueue, many": [many / queue.seconds_to_fill(many, many=True)]}


def _latency(course: Course, contestant: Contestant) -> Reading:
    with course.open(contestant) as queue, queue.workers(_IDLE, "arrive"):
        samples = queue.feed(int(40 * course.share))
    return {
        "latency": [(begun - before) * 1000 for before, _, begun in samples],
        "latency after the call": [(begun - after) * 1000 for _, after, begun in samples],
    }


def _held(course: Course, contestant: Contestant) -> Reading:
    """At full speed, while one idle transaction keeps every dead row: the rate over all, and of the last seconds."""
    size = contestant.size
    with course.open(contestant) as queue:
        queue.fill(size)
        with psycopg.connect((queue.folder / "url").read_text()) as held:
            held.execute("SELECT pg_current_xact_id()")
            with queue.workers(2) as programs, _replenished(queue, size):
                waiting.until(lambda: tally.read(queue.folder).jobs, "the first job", _BACK)
                began = time.monotonic()
                time.sleep(max(0.0, course.held - _PART))
                before, at = tally.read(queue.folder), time.monotonic()
                time.sleep(_PART)
                after, end = tally.read(queue.folder), time.monotonic()
                if all(program.poll() is not None for program in programs):
                    return {}
    return {
        "held back": [after.jobs / (end - began)],
        "held back, at the end": [(after.jobs - before.jobs) / (end - at)],
    }


@contextlib.contextmanager
def _replenished(queue: OpenQueue, size: int) -> Iterator[None]:
    """There are always enough jobs."""
    over, filled = threading.Event(), size

    def fill() -> None:
        nonlocal filled
        while not over.wait(0.05):
            if filled - tally.read(queue.folder).jobs < size:
                queue.fill(size)
                filled += size

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _steady(course: Course, contestant: Contestant) -> Reading:
    with course.open(contestant) as queue:
        return steady.measure(course.server, queue, course.held)


def _restart(course: Course, contestant: Contestant) -> Reading:
    """Two workers at work when the server restarts: seconds from when it can be reached to the next job begun."""
    with course.open(contestant) as queue:
        queue.fill(contestant.size)
        with queue.workers(2) as programs:
            waiting.until(lambda: tally.read(queue.folder).jobs, "the first job", _BACK)
            course.server.restart()
            began, before = time.monotonic(), tally.read(queue.folder).jobs
            queue.fill(100)
            try:
                waiting.until(lambda: tally.read(queue.folder).jobs > before, "a job after the restart", _BACK)
            except waiting.NotInTime:
                if all(program.poll() is not None for program in programs):
                    raise processes.ProgramFailed("its workers have ended") from None
                raise
            return {"back after": [time.monotonic() - began]}


def _fences(course: Course, contestant: Contestant) -> Reading:
    with course.open(contestant) as queue:
        return fences.measure(queue, fences.TAKEOVERS[contestant.name])


def _settle_down(queue: OpenQueue) -> None:
    """What filling the table has left behind: as autovacuum would soon."""
    with psycopg.connect((queue.folder / "url").read_text(), autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")


MEASURES = {
    "throughput": Measurement(
        "no-op jobs a second with 1, 2 and 8 workers, the queue filled first",
        "throughput",
        {str(count): partial(_throughput, count) for count in WORKERS},
    ),
    "enqueue": Measurement(
        "jobs a second from one program: a commit for each, and 1,000 in a call", "enqueue", {"": _enqueue}
    ),
    "latency": Measurement(
        "2 idle workers: from the call that enqueues a job, and from its commit, to the handler's first line",
        "latency",
        {str(_IDLE): _latency},
    ),
    "held": Measurement("2 workers at full speed while a transaction stays open", "held back", {"2": _held}),
    "restart": Measurement(
        "the server restarts while 2 workers work: from when it can be reached to the next job",
        "back after",
        {"2": _restart},
    ),
    "fences": Measurement(
        "a stopped worker goes on after another one has taken its job: 1 if its late result is refused, 0 if it is "
        "written",
        "fenced",
        {"1": _fences},
    ),
    "steady": Measurement("ours alone: 1,000 jobs a second while a transaction stays open", "steady", {"2": _steady}),
}
