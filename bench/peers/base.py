"""How a peer's programs are run."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import processes
from bench.contestant import ALL_COUNTS
from bench.peers import install, redis_server
from bench.probe import tally

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
PROBE = HERE.parent / "probe"
Sample = tuple[float, float, float]  # before the call that enqueues, after it, the handler's first line
_PATIENCE = 120.0  # seconds for a program that fills a queue or feeds an idle one


@dataclass(frozen=True)
class Peer:
    """Another job system. One file in this folder makes one of these.

    `needs` are what must be installed (see install.py); `versions` asks what is; `program` is its enqueuing
    program; `command` makes the commands of its workers from their number; `settings` says how it is run, with its
    fastest documented settings; `keeps` says what becomes of a job whose worker is killed; `can_sync` says that its
    programs sync each commit if BENCH_COMMIT is FULL; `threads` is for workers that are threads of one process.
    """

    name: str
    title: str
    store: str
    settings: str
    keeps: str
    needs: tuple[install.Need, ...]
    versions: Callable[[], dict[str, str]]
    program: Sequence[str]
    command: Callable[[int], list[list[str]]]
    size: int
    has_many: bool = False
    can_sync: bool = False
    worker_counts: tuple[int, ...] = ALL_COUNTS
    threads: bool = False

    @contextlib.contextmanager
    def open(self, folder: Path) -> Iterator[PeerQueue]:
        with contextlib.ExitStack() as stack:
            env = environment(folder)
            if install.REDIS in self.needs:
                env["BENCH_REDIS"] = stack.enter_context(redis_server.serving(folder))
            yield PeerQueue(folder, self, env)


class PeerQueue:
    """Implements `bench.contestant.OpenQueue` by the peer's programs."""

    def __init__(self, folder: Path, peer: Peer, env: dict[str, str]) -> None:
        self.folder = folder
        self._peer = peer
        self._env = env

    def fill(self, jobs: int) -> None:
        self.seconds_to_fill(jobs)

    def seconds_to_fill(self, jobs: int, *, many: bool = False, synced: bool = False) -> float:
        """Enqueue no-op jobs with a call each, or by the call for many."""
        env = {"BENCH_COMMIT": "FULL"} if synced else {}
        return float(self._call("fill-many" if many else "fill", jobs, **env))

    def feed(self, jobs: int) -> list[Sample]:
        """Enqueue jobs one at a time while the workers are idle."""
        return [(before, after, at) for before, after, at in json.loads(self._call("feed", jobs))]

    @contextlib.contextmanager
    def workers(self, count: int, type: str = "noop") -> Iterator[list[subprocess.Popen[bytes]]]:
        with contextlib.ExitStack() as stack:
            env = self._env | {"BENCH_TYPE": type}
            commands = self._peer.command(count)
            log = self.folder / "workers.log"
            yield [stack.enter_context(processes.running(command, env=env, log=log)) for command in commands]

    def _call(self, what: str, jobs: int, **env: str) -> str:
        command = [*self._peer.program, what, str(jobs)]
        return processes.call(command, env=self._env | env, log=self.folder / "enqueue.log", patience=_PATIENCE)


def environment(folder: Path) -> dict[str, str]:
    """What a contestant's programs find in their environment; makes the pipe of the arrivals."""
    arrivals = folder / "arrivals"
    if not arrivals.exists():
        os.mkfifo(arrivals, 0o600)
    return os.environ | {
        tally.FOLDER: str(folder),
        tally.PIPE: str(arrivals),
        "BENCH_DATABASE": str(folder / "app.db"),
        "BENCH_NODE": str(install.NODE_PLACE),
        "PYTHONPATH": os.pathsep.join(str(path) for path in (PROBE, PROGRAMS)),
    }


def python(*arguments: str, place: Path = install.PYTHON_PLACE) -> list[str]:
    """A command in an environment of Python peers."""
    return [str(place / "bin" / "python"), *arguments]
