"""One contestant at work: it is started, asked, weighed, and one of its workers is killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench import models, processes, waiting
from bench.processes import ProgramFailed
from bench.serving.contestants import Contestant, Site

CLIENTS = 4  # for each worker: enough to saturate it
_SENDERS = 32  # threads of a client that asks at given times
_START = 120.0  # seconds until the first answer
_ASKED = 180.0  # seconds for one plan
_BEFORE_KILL = 0.5  # seconds of full load, after as many answers as there are clients
_AFTER_ANSWER = 1.0  # seconds of it after somebody else has answered
_NEVER = 25.0  # seconds after a kill without an answer


class Sample(NamedTuple):
    """One request, in monotonic seconds. `end` is None if nothing was answered; `pid` has answered."""

    begin: float
    end: float | None
    error: str | None
    pid: int | None


@dataclass(frozen=True)
class Kill:
    """What became of the requests when a worker was killed."""

    at: float
    victim: int
    samples: list[Sample]
    ended: bool  # the whole server

    @property
    def in_flight(self) -> list[Sample]:
        return [one for one in self.samples if one.begin < self.at and (one.end is None or one.end > self.at)]

    @property
    def lost(self) -> int:
        return sum(one.end is not None and one.error is not None for one in self.in_flight)

    @property
    def hung(self) -> int:
        return sum(one.end is None for one in self.in_flight)

    @property
    def next_answer(self) -> float:
        """Seconds until another process than the victim has answered. Raises ProgramFailed."""
        ends = [one.end for one in self.samples if one.end and one.end > self.at and one.pid not in (None, self.victim)]
        if not ends:
            raise ProgramFailed("the server ends" if self.ended else f"no answer within {_NEVER:g} s")
        return min(ends) - self.at


@dataclass
class Server:
    contestant: Contestant
    site: Site
    programs: list[processes.Program] = field(default_factory=list)
    first_answer: float = 0.0  # seconds from its start
    workers: set[int] = field(default_factory=set)  # that have answered

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Start it while a client asks, and go on when all models and all workers have answered."""
        ready = self.site.folder / "ready"
        first = {"kind": "first", "ready": str(ready)}
        with contextlib.ExitStack() as stack:
            with self._asking(first) as samples:
                waiting.until(ready.exists, "a client", _START)
                began = time.monotonic()
                self.programs = stack.enter_context(self.contestant.serving(self.site))
            last = samples[-1]
            assert last.end is not None
            self.first_answer = last.end - began
            for name in self.site.names[1:]:  # some servers answer for the first model before they have the others
                with self._asking(first | {"model": name}):
                    pass
            self._await_workers()
            yield

    def _await_workers(self) -> None:
        def all_answered() -> bool:
            for name in self.site.names:
                for sample in self.saturate(CLIENTS * self.site.workers * 2, name):
                    self.workers.add(sample.pid or 0)
            return len(self.workers) >= self.site.workers

        waiting.until(all_answered, f"answers of {self.site.workers} workers", _START)

    def saturate(self, requests: int, model: str = "") -> list[Sample]:
        plan = {"kind": "saturate", "clients": CLIENTS * self.site.workers, "requests": requests}
        return self._answered(plan | ({"model": model} if model else {}))

    def paced(self, requests: int, rate: float) -> list[Sample]:
        return self._answered({"kind": "paced", "clients": _SENDERS, "requests": requests, "rate": rate})

    def _answered(self, plan: dict[str, Any]) -> list[Sample]:
        with self._asking(plan) as samples:
            pass
        if errors := [one.error for one in samples if one.error]:
            raise ProgramFailed(f"{len(errors)} of {len(samples)} requests failed: {errors[0]}")
        return samples

    def memory(self) -> float:
        """Bytes of all processes that belong to it; a page that several share counts once."""
        return sum(process.memory_full_info().pss for process in psutil.Process().children(recursive=True))

    def kill_one(self) -> Kill:
        """Kill a worker under full load."""
        killed, ready = self.site.folder / "killed", self.site.folder / "under load"
        plan = {"kind": "hold", "clients": CLIENTS * self.site.workers, "killed": str(killed), "ready": str(ready)}
        with self._asking(plan | {"patience": _NEVER, "more": _AFTER_ANSWER}) as samples:
            waiting.until(ready.exists, "answers under full load", _START)
            time.sleep(_BEFORE_KILL)
            victim = next(pid for pid in self.workers if psutil.pid_exists(pid))
            at = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            part = killed.with_suffix(".part")
            part.write_text(json.dumps([at, victim]))
            part.rename(killed)
        return Kill(at, victim, samples, any(program.poll() is not None for program in self.programs))

    @contextlib.contextmanager
    def _asking(self, plan: dict[str, Any]) -> Iterator[list[Sample]]:
        """A client at work; its samples are there after the block."""
        samples: list[Sample] = []
        told, log = self.site.folder / "samples", self.site.folder / "client.log"
        told.unlink(missing_ok=True)
        plan = {"model": self.site.names[0], "paths": models.pictures(), "samples": str(told)} | plan
        env = {**self.site.env, "BENCH_PLAN": json.dumps(plan)}
        with processes.running(self.contestant.client, env=env, log=log) as client:
            yield samples
            self._await(client, log, told)
        samples += [Sample(*one) for one in json.loads(told.read_text())]

    def _await(self, client: processes.Program, log: Path, told: Path) -> None:
        killed = self.site.folder / "killed"

        def ended() -> bool:
            dead = [program.returncode for program in self.programs if program.poll() is not None]
            if dead and not killed.exists():
                why = processes.tail(log.with_name("server.log"))
                raise ProgramFailed(f"the server has ended with status {dead[0]}{why}")
            return client.poll() is not None

        waiting.until(ended, f"the client{processes.tail(log)}", _ASKED, pause=0.01)
        if not told.exists():
            raise ProgramFailed(f"the client has ended{processes.tail(log)}")


@contextlib.contextmanager
def opened(contestant: Contestant, folder: Path, workers: int, count: int) -> Iterator[Server]:
    """A contestant that serves `count` models with so many workers each, all of which have answered."""
    try:
        with contestant.site(folder, workers, count) as site:
            server = Server(contestant, site)
            with server.started():
                yield server
    finally:
        processes.sweep()


def rate(samples: list[Sample]) -> float:
    """Answers a second."""
    ends = [one.end for one in samples if one.end is not None]
    return len(ends) / (max(ends) - min(one.begin for one in samples))
