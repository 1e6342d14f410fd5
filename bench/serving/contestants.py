"""Ours and the model servers: what each needs, and how its programs are run."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import models, processes
from bench.ours import ROOT
from bench.peers import install, redis_server
from supervisor.engine import open_engine

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
PLACE = install.PLACE / "models"
_TOKEN = "the-token-of-the-benchmark"
WORKERS = ("1", "2")  # with one model
THREE = "three models"  # with one worker each
CASES = (*WORKERS, THREE)
_PATIENCE = 60  # seconds that a client of ours waits for its answer, as those of the others do


@dataclass(frozen=True)
class Site:
    """A folder in which one contestant serves so many models with so many workers each, and where it is reached."""

    folder: Path
    workers: int
    models: int
    port: int
    env: Mapping[str, str]

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    @property
    def names(self) -> list[str]:
        return [f"score{number}" for number in range(1, self.models + 1)]

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder / 'app.db'}"

    def loads(self) -> list[int]:
        """The process of each model that was loaded."""
        return [int(path.name.split("-")[1]) for path in self.notes.glob("load-*")]


@dataclass(frozen=True)
class Contestant:
    """`commands` makes those of its server, `client` is the program that asks it. `path` is the address of a model over
    HTTP; the part in braces stands for its name. It is measured in these `cases`. `settings` says how a peer is run.
    """

    name: str
    title: str
    needs: tuple[install.Need, ...]
    versions: Callable[[], dict[str, str]]
    commands: Callable[[Site], list[list[str]]]
    client: Sequence[str]
    path: str = "/{}"
    cases: tuple[str, ...] = CASES
    settings: str = ""

    @property
    def is_ours(self) -> bool:
        return self.name.startswith("ours")

    @contextlib.contextmanager
    def site(self, folder: Path, workers: int, count: int) -> Iterator[Site]:
        """An empty folder, with what must be there before the server starts."""
        port = redis_server.free_port()
        (folder / "notes").mkdir()
        with contextlib.ExitStack() as stack:
            env = os.environ | models.environment(folder) | self._places(folder) | _QUIET
            env |= {"BENCH_WORKERS": str(workers), "BENCH_MODELS": str(count), "BENCH_PORT": str(port)}
            if install.REDIS in self.needs:
                env["BENCH_REDIS"] = stack.enter_context(redis_server.serving(folder))
            site = Site(folder, workers, count, port, env)
            if self.is_ours:
                open_engine(site.url).database.migrate()
            yield site

    def _places(self, folder: Path) -> dict[str, str]:
        return {
            "BENCH_NOTES": str(folder / "notes"),
            "TMPDIR": str(folder),  # what a killed server leaves behind goes away, too
            "BENCH_PATH": self.path,
            "BENCH_HEADERS": json.dumps({"Authorization": f"Bearer {_TOKEN}"} if self.is_ours else {}),
            "BENCH_URL": f"sqlite:///{folder / 'app.db'}",
            "PYTHONPATH": os.pathsep.join([str(PROGRAMS), *([str(ROOT)] if self.is_ours else [])]),
        }

    @contextlib.contextmanager
    def serving(self, site: Site) -> Iterator[list[processes.Program]]:
        """The running server."""
        with contextlib.ExitStack() as stack:
            log = site.folder / "server.log"
            yield [stack.enter_context(processes.running(one, env=site.env, log=log)) for one in self.commands(site)]


_QUIET = {  # nothing that asks the network, and what is cached goes away with the folder
    "BENTOML_DO_NOT_TRACK": "True",
    "DO_NOT_TRACK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
}


# Ours


def pools(site: Site, workers: str) -> str:
    """A pool for each model."""
    every = f"{workers}\nmax_jobs_per_worker = 1000000000\n"
    return "".join(f'[pools.{name}]\nhandler = "our_scores:One"\n{every}' for name in site.names)


def _one_pool(site: Site) -> str:
    """One for all models: each worker has all of them, which are loaded once, before the workers are forked."""
    return (
        f'[pools.scores]\nhandler = "our_scores:All"\ntypes = {json.dumps(site.names)}\npreload_setup = true\n'
        f"workers = {site.workers}\nmax_jobs_per_worker = 1000000000\n"
    )


def _with_spare(site: Site) -> str:
    """The same with a spare that has scored a picture: the first one in a process takes two to three times as long."""
    payload = f"{{ path = {json.dumps(models.pictures()[0])} }}"
    return f'{_one_pool(site)}spares = 1\nwarmup = {{ type = "{site.names[0]}", payload = {payload} }}\n'


def _pool_each(site: Site) -> str:
    return pools(site, f"workers = {site.workers}")


def _ours(site: Site, found: Callable[[Site], str], *, admin: bool) -> list[list[str]]:
    text = f'database = "{site.url}"\n{found(site)}[log]\nlevel = "error"\n'
    if admin:
        token = site.folder / "token"
        token.write_text(_TOKEN)
        token.chmod(0o600)
        text += f'[admin]\nlisten = "127.0.0.1:{site.port}"\ntoken_file = "{token}"\n'
    return [run_supervisor(site, text)]


def run_supervisor(site: Site, config: str) -> list[str]:
    """The command of a supervisor with this configuration."""
    path = site.folder / "supervisor.toml"
    path.write_text(config)
    return [sys.executable, "-m", "supervisor", "run", "-c", str(path)]


_HTTP = [sys.executable, str(PROGRAMS / "http_load.py")]
_RUN = f"/run/{{}}?wait={_PATIENCE}"
QUEUE = Contestant(
    "ours",
    "job-supervisor, by the queue",
    (),
    dict,
    partial(_ours, found=_pool_each, admin=False),
    [sys.executable, str(PROGRAMS / "queue_load.py")],
)


def _over_http(name: str, title: str, found: Callable[[Site], str], cases: tuple[str, ...] = CASES) -> Contestant:
    return Contestant(name, title, (), dict, partial(_ours, found=found, admin=True), _HTTP, _RUN, cases)


RUN = _over_http("ours-run", "job-supervisor, POST /run", _pool_each)
PRELOAD = _over_http("ours-preload", "job-supervisor, POST /run, preload_setup", _one_pool)
# Not with two workers: the other one answers while the killed one is replaced, whether there is a spare or not.
SPARE = _over_http("ours-spare", f"{PRELOAD.title}, spares = 1", _with_spare, cases=(WORKERS[0], THREE))
OURS = {one.name: one for one in (QUEUE, RUN, PRELOAD, SPARE)}


# The others


def _python(name: str) -> Path:
    return PLACE / name / "bin" / "python"


def _peer(
    name: str,
    title: str,
    settings: str,
    packages: Sequence[str],
    arguments: Callable[[Site], list[list[str]]],
    *,
    client: Sequence[str] = _HTTP,
    needs: tuple[install.Need, ...] = (),
) -> Contestant:
    """`arguments` are those of its Python. Each has an environment of its own: what they ask for does not agree."""
    place, requirements = PLACE / name, HERE / "requirements" / f"{name}.txt"
    provide = partial(install.provide_python, place, requirements, title, lambda: sys.executable)
    return Contestant(
        name,
        title,
        (install.Need(f"{title}’s packages", provide), *needs),
        lambda: install.python_versions(*packages, place=place),
        lambda site: [[str(_python(name)), *line] for line in arguments(site)],
        client,
        settings=settings,
    )


def _program(name: str) -> str:
    return str(PROGRAMS / f"{name}_scores.py")


def _celery(site: Site) -> list[list[str]]:
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    start = ["-m", "celery", "--app", "celery_scores", "worker", "--concurrency", str(site.workers), *quiet]
    return [[*start, "--queues", name, "--hostname", f"{name}@%h"] for name in site.names]


def _mosec(site: Site) -> list[list[str]]:
    where = ["--address", "127.0.0.1", "--port", str(site.port), "--timeout", "60000", "--log-level", "error"]
    return [[_program("mosec"), *where]]


def _bentoml(site: Site) -> list[list[str]]:
    where = ["--host", "127.0.0.1", "--port", str(site.port), "--working-dir", str(PROGRAMS)]
    return [["-m", "bentoml", "serve", "bentoml_scores:Scores", *where]]


PEERS = {
    one.name: one
    for one in (
        _peer(
            "litserve",
            "LitServe",
            "an API for each model, one process for HTTP, `workers_per_device`, `restart_workers`",
            ["litserve"],
            lambda site: [[_program("litserve")]],
        ),
        _peer("mosec", "mosec", "a route and a `Runtime` for each model", ["mosec"], _mosec),
        _peer("bentoml", "BentoML", "one service with an API for each model, in one process", ["bentoml"], _bentoml),
        _peer(
            "ray",
            "Ray Serve",
            "an application for each model; an object store of 80 MB. Its installation takes 400 MB, and it needs a "
            "short path as `--scratch`",
            ["ray"],
            lambda site: [[_program("ray")]],
        ),
        _peer(
            "celery",
            "Celery on Redis, acks_late",
            "a prefork worker for each model, `acks_late`, `reject_on_worker_lost`, prefetch 1",
            ["celery"],
            _celery,
            client=[str(_python("celery")), _program("celery")],
            needs=(install.REDIS,),
        ),
    )
}
BARE = "floor"
TITLES = {**{name: one.title for name, one in (OURS | PEERS).items()}, BARE: "a bare loop"}
