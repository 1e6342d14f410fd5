"""What is measured of each contestant that serves a model."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from bench import models, processes
from bench.serving import server, turns
from bench.serving.contestants import BARE, PROGRAMS, QUEUE, THREE, WORKERS, Contestant, Site
from bench.serving.server import Kill, Sample, Server
from bench.serving.turns import Bursts
from bench.trial import Reading

UNITS = {
    "pictures": "pictures/s",
    "request": "ms",
    "memory": "MB",
    "first answer": "s",
    "in flight": "requests",
    "lost": "requests",
    "hung": "requests",
    "next answer": "s",
    "turns": "pictures/s",
    "loads": "loads",
    "loads for each residency": "loads",
    "failed": "jobs",
    "killed": "jobs",
}
MEASURES = {
    "pictures": "pictures a second with 1 and 2 workers under full load",
    "request": "a request with 1 worker at half the load of a bare loop, from its planned time to its answer",
    "memory": "PSS of all processes with one model and with three; Redis and the spare included",
    "start": "from the start of the programs to the first answer",
    "kill": "KILL to a worker under full load: requests in flight that fail or have no answer after 25 s, and the time "
    "to the next answer",
    "turns": "ours alone: bursts for three models, with memory for two and a half of them, and for all",
}


class Take:
    """Where readings go; an error of one of them is noted, and the others go on."""

    def __init__(self, only: Sequence[str], note: Callable[[str, Callable[[], Reading]], None]) -> None:
        self._only = only or MEASURES
        self._note = note

    def wants(self, *measures: str) -> bool:
        return any(measure in self._only for measure in measures)

    def __call__(self, measure: str, figure: str, value: Callable[[], Sequence[float]]) -> None:
        if self.wants(measure):
            self._note(figure, lambda: {figure: value()})

    def several(self, measure: str, figure: str, values: Callable[[], Reading]) -> None:
        if self.wants(measure):
            self._note(figure, values)


@dataclass(frozen=True)
class Course:
    """One run: a scratch folder, and how thorough it is."""

    folder: Path
    quick: bool

    @property
    def pictures(self) -> int:
        """For each worker."""
        return 40 if self.quick else 200

    @property
    def requests(self) -> int:
        return 30 if self.quick else 200

    @property
    def bursts(self) -> Bursts:
        return Bursts(4, 20) if self.quick else Bursts(9, 200)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder, prefix="", ignore_cleanup_errors=True) as folder:
            yield Path(folder)

    @cached_property
    def half(self) -> float:
        """Requests a second: half of what a bare loop does, the same for everybody."""
        return server.rate(self.bare(1)) / 2

    @cached_property
    def room_for_two(self) -> int:
        with self.scratch() as folder:
            return turns.room_for_two(folder)

    def bare(self, workers: int) -> list[Sample]:
        """Each picture that a bare loop has scored."""
        told = self._bare("bare.py", str(workers), str(self.pictures * workers), *models.pictures(), workers=workers)
        return [Sample(begin, end, None, None) for begin, end in json.loads(told)]

    def bare_memory(self, networks: int) -> int:
        """Bytes of one process with so many networks: no server of them can have less."""
        return int(self._bare("bare_memory.py", models.pictures()[0], networks=networks))

    def _bare(self, program: str, *arguments: str, workers: int = 1, networks: int = 1) -> str:
        with self.scratch() as folder, QUEUE.site(folder, workers, networks) as site:
            return processes.call(
                [sys.executable, str(PROGRAMS / program), *arguments],
                env=site.env,
                log=folder / "bare.log",
                patience=_patience(site),
            )


def _patience(site: Site) -> float:
    return 120.0 * site.workers


Visit = Callable[[Take], None]


@dataclass(frozen=True)
class Turn:
    """One contestant in one case: what is measured between one start of it and its end."""

    contestant: str
    case: str
    first: str  # its first figure
    visit: Visit


def visits(course: Course, contestants: Sequence[Contestant], take: Take) -> list[Turn]:
    """What is to be compared stands side by side."""
    found: list[Turn] = []
    for case in WORKERS:
        if take.wants("pictures", "kill") or (case == "1" and take.wants("request", "memory", "start")):
            found.append(Turn(BARE, case, "pictures", partial(_bare, course, case)))
            found += [
                Turn(one.name, case, "first answer", partial(_serve, course, one, case))
                for one in contestants
                if case in one.cases
            ]
    if take.wants("memory"):
        found.append(Turn(BARE, THREE, "memory", partial(_bare_memory, course, 3)))
        found += [Turn(one.name, THREE, "memory", partial(_three, course, one)) for one in contestants]
    if take.wants("turns"):
        found += [Turn(QUEUE.name, case, "turns", partial(_turns, course, case)) for case in (turns.ALL, turns.TWO)]
    return found


def _bare(course: Course, case: str, take: Take) -> None:
    samples = course.bare(int(case))
    take("pictures", "pictures", lambda: [server.rate(samples)])
    if case == "1":
        take("request", "request", lambda: _milliseconds(samples))
        _bare_memory(course, 1, take)


def _bare_memory(course: Course, networks: int, take: Take) -> None:
    take("memory", "memory", lambda: [course.bare_memory(networks) / 1e6])


def _serve(course: Course, contestant: Contestant, case: str, take: Take) -> None:
    workers = int(case)
    with course.scratch() as folder, server.opened(contestant, folder, workers, 1) as running:
        if case == "1":
            take("start", "first answer", lambda: [running.first_answer])
            take("memory", "memory", lambda: _megabytes(running))
            take("request", "request", lambda: _milliseconds(running.paced(course.requests, course.half)))
        take("pictures", "pictures", lambda: [server.rate(running.saturate(course.pictures * workers))])
        if take.wants("kill"):
            kill = running.kill_one()
            take.several("kill", "lost", lambda: _lost(kill))
            take("kill", "next answer", lambda: [kill.next_answer])


def _lost(kill: Kill) -> Reading:
    return {"in flight": [len(kill.in_flight)], "lost": [kill.lost], "hung": [kill.hung]}


def _three(course: Course, contestant: Contestant, take: Take) -> None:
    with course.scratch() as folder, server.opened(contestant, folder, 1, 3) as running:
        take("memory", "memory", lambda: _megabytes(running))


def _turns(course: Course, case: str, take: Take) -> None:
    memory = course.room_for_two if case == turns.TWO else None
    with course.scratch() as folder:
        take.several("turns", "turns", lambda: turns.measure(folder, course.bursts, memory))


def _megabytes(running: Server) -> list[float]:
    return [running.memory() / 1e6]


def _milliseconds(samples: list[Sample]) -> list[float]:
    return [(one.end - one.begin) * 1000 for one in samples if one.end is not None]
