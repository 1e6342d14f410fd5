"""Ours and the peers on PostgreSQL: what each needs, and how its programs are run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import processes
from bench.ours import HANDLERS, ROOT, pool
from bench.peers import install
from bench.peers.base import PROBE, PROGRAMS, Sample
from bench.probe import tally

HERE = Path(__file__).parent
PYTHON_PLACE = install.PLACE / "postgres"
NODE_PLACE = install.PLACE / "postgres-node"
OLDEST_PYTHON = (3, 12)  # Oban's
_PATIENCE = 180.0  # seconds for a program that sets up, fills a queue or feeds an idle one


def _newer_python() -> str:
    """An interpreter that all of them support. Raises Missing."""
    if sys.version_info >= OLDEST_PYTHON:
        return sys.executable
    versions = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    names = [f"python3.{minor}" for minor in (13, 12, 14)]
    found = [*map(shutil.which, names), *(path for name in names for path in versions.glob(f"*/bin/{name}"))]
    for path in found:
        if path and subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode == 0:
            return str(path)
    raise install.Missing("there is no Python 3.12 or newer here")


PYTHON = install.Need(
    "Python packages",
    partial(
        install.provide_python, PYTHON_PLACE, HERE / "requirements.txt", "the Python peers on PostgreSQL", _newer_python
    ),
)
NODE = install.Need(
    "npm packages", partial(install.provide_node, NODE_PLACE, HERE / "package.json", "the Node.js peer on PostgreSQL")
)


@dataclass(frozen=True)
class Contestant:
    """`program` enqueues and sets up; `command` makes the workers' commands from their number and what they run.
    `size` is the number of no-op jobs that make two or three seconds of work, `many` of those enqueued by calls for
    many. `settings` says how it is run, `keeps` what becomes of a finished job, `fences` what a result must match to be
    written.
    """

    name: str
    title: str
    settings: str
    size: int
    keeps: str
    fences: str
    needs: tuple[install.Need, ...]
    program: Sequence[str]
    command: Callable[[int, str, Path], list[list[str]]]
    versions: Callable[[], dict[str, str]]


def _ours_command(workers: int, kind: str, folder: Path) -> list[list[str]]:
    (folder / "jobs.py").write_text(HANDLERS)
    config = folder / "supervisor.toml"
    url = (folder / "url").read_text()
    config.write_text(f'database = "{url}"\n{pool(kind, workers)}\n[log]\nlevel = "error"\n')
    return [[sys.executable, "-m", "supervisor", "run", "-c", str(config)]]


def _python(name: str, title: str, settings: str, size: int, keeps: str, fences: str, package: str = "") -> Contestant:
    program = [str(PYTHON_PLACE / "bin" / "python"), str(PROGRAMS / f"{name}_app.py")]
    return Contestant(
        name,
        title,
        settings,
        size,
        keeps,
        fences,
        (PYTHON,),
        program,
        lambda workers, _, __: [[*program, "work"]] * workers,
        lambda: install.python_versions(package or name, place=PYTHON_PLACE),
    )


def _graphile_versions() -> dict[str, str]:
    told = subprocess.run(
        [*_GRAPHILE, "versions"], env=os.environ | {"BENCH_NODE": str(NODE_PLACE)}, capture_output=True, check=True
    ).stdout
    return {str(name): str(version) for name, version in json.loads(told).items()}


_GRAPHILE = ["node", str(PROGRAMS / "graphile_app.mjs")]
OURS = Contestant(
    "ours",
    "job-supervisor",
    "",
    100_000,
    "stays in the table",
    "id, state, owner and token of the claim",
    (),
    [sys.executable, str(PROGRAMS / "ours_postgres_app.py")],
    _ours_command,
    dict,
)
PEERS = {
    peer.name: peer
    for peer in (
        Contestant(
            "graphile",
            "graphile-worker, local queue of 500",
            "24 jobs at a time, completions batched with a delay of 0",
            60_000,
            "is deleted",
            "the id",
            (NODE,),
            _GRAPHILE,
            lambda workers, _, __: [[*_GRAPHILE, "work"]] * workers,
            _graphile_versions,
        ),
        _python("pgqueuer", "PgQueuer, batches of 500", "on asyncpg and uvloop", 30_000, "moves to a log", "the id"),
        _python(
            "awa", "awa-pg", "24 jobs at a time; its queue storage", 5_000, "moves to a history", "a lease", "awa-pg"
        ),
        _python(
            "oban",
            "Oban for Python",
            "50 jobs at a time; needs Python 3.12",
            5_000,
            "stays in the table",
            "id, state and time of the attempt",
        ),
        _python(
            "procrastinate",
            "Procrastinate",
            "24 jobs at a time, asynchronous tasks",
            1_000,
            "stays in the table",
            "id and state",
        ),
    )
}


class OpenQueue:
    """A contestant's queue in an empty database. Implements `bench.contestant.OpenQueue`."""

    def __init__(self, folder: Path, contestant: Contestant, url: str) -> None:
        self.folder = folder
        self._contestant = contestant
        (folder / "url").write_text(url)
        os.mkfifo(folder / "arrivals", 0o600)
        paths = [str(PROBE), str(PROGRAMS), *([str(ROOT)] if contestant is OURS else [])]
        self.env = os.environ | {
            tally.FOLDER: str(folder),
            tally.PIPE: str(folder / "arrivals"),
            "BENCH_POSTGRES": url,
            "BENCH_NODE": str(NODE_PLACE),
            "XDG_STATE_HOME": str(folder),
            "PYTHONPATH": os.pathsep.join(paths),
        }
        self.call("setup")

    def fill(self, jobs: int) -> None:
        self.call("fill-many", jobs)

    def seconds_to_fill(self, jobs: int, *, many: bool = False) -> float:
        return float(self.call("fill-many" if many else "fill", jobs))

    def feed(self, jobs: int) -> list[Sample]:
        """Enqueue jobs one at a time while the workers are idle."""
        return [(before, after, at) for before, after, at in json.loads(self.call("feed", jobs))]

    @contextlib.contextmanager
    def workers(self, count: int, type: str = "noop") -> Iterator[list[subprocess.Popen[bytes]]]:
        with contextlib.ExitStack() as stack:
            log = self.folder / "workers.log"
            commands = self._contestant.command(count, type, self.folder)
            yield [stack.enter_context(processes.running(command, env=self.env, log=log)) for command in commands]

    def call(self, what: str, jobs: int = 0) -> str:
        command = [*self._contestant.program, what, str(jobs)]
        return processes.call(command, env=self.env, log=self.folder / "enqueue.log", patience=_PATIENCE)
