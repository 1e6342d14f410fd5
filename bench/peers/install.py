"""The peers' own environments under bench/.peers: made when they are missing, never part of ours."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from bench import processes
from bench.record import Absence, Record

HERE = Path(__file__).parent
PLACE = HERE.parent / ".peers"
PYTHON_PLACE = PLACE / "python"
WHEELS_PLACE = PLACE / "wheels"
NODE_PLACE = PLACE / "node"
REDIS_PLACE = PLACE / "redis"
_PATIENCE = 600.0  # seconds for one installation: better-sqlite3 may have to be compiled
_DEBIAN_PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1", "libatomic1")


class Missing(Exception):
    """Why something cannot be had here."""


@dataclass(frozen=True)
class Need:
    """Something that peers need. `provide` installs it if it is missing and raises Missing if it cannot."""

    name: str
    provide: Callable[[], None] = field(compare=False)


def reason_missing(needs: tuple[Need, ...]) -> str | None:
    """Why one of the needs cannot be met, in a sentence; None when all are."""
    for need in needs:
        problem = _provided(need)
        if problem is not None:
            return problem
    return None


class Contestant(Protocol):
    """What a benchmark compares with."""

    @property
    def title(self) -> str: ...
    @property
    def needs(self) -> tuple[Need, ...]: ...


C = TypeVar("C", bound=Contestant)


def provided(peers: Mapping[str, C], chosen: Collection[str], record: Record) -> list[C]:
    """The chosen peers that can be had; the record names the others with the reason."""
    found = []
    for name, peer in peers.items():
        reason = reason_missing(peer.needs) if name in chosen else "left out by --peers"
        if reason is None:
            found.append(peer)
            continue
        record.miss(Absence("", name, "", reason))
        if name in chosen:
            print(f"{peer.title}: not measured: {reason}", file=sys.stderr)
    return found


@functools.cache
def _provided(need: Need) -> str | None:
    try:
        need.provide()
    except (Missing, processes.ProgramFailed, OSError) as error:
        return f"{need.name}: {error}"
    return None


def provide_python(place: Path, requirements: Path, what: str, interpreter: Callable[[], str]) -> None:
    """An environment with these packages. Raises Missing."""
    wanted = requirements.read_text()
    if _stands(place, wanted):
        return
    _tell(what)
    shutil.rmtree(place, ignore_errors=True)
    _run([interpreter(), "-m", "venv", str(place)])
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*pip, "-r", str(requirements)])
    _mark(place, wanted)


def provide_node(place: Path, package: Path, what: str) -> None:
    """A folder with these packages. Raises Missing."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Missing(f"there is no {program} here; install Node.js 20 or newer")
    wanted = package.read_text()
    if _stands(place, wanted):
        return
    _tell(what)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copy(package, place)
    _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-package-lock", "--prefix", str(place)])
    _mark(place, wanted)


def _provide_redis() -> None:
    """Debian's package, installed or unpacked beside the others, which needs no rights and starts no service."""
    if redis_command() is not None:
        return
    for program in ("apt-get", "dpkg"):
        if shutil.which(program) is None:
            raise Missing("there is no redis-server here; install the package redis-server")
    _tell("Redis")
    shutil.rmtree(REDIS_PLACE, ignore_errors=True)
    REDIS_PLACE.mkdir(parents=True)
    try:
        _run(["apt-get", "download", "--quiet", *_DEBIAN_PACKAGES], folder=REDIS_PLACE)
        for package in sorted(REDIS_PLACE.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(REDIS_PLACE)])
            package.unlink()
    except processes.ProgramFailed as error:
        raise Missing(f"install the package redis-server, or run apt-get update ({error})") from None
    if redis_command() is None:
        raise Missing("the unpacked redis-server does not start; install the package redis-server")


PYTHON = Need(
    "Python packages",
    functools.partial(
        provide_python, PYTHON_PLACE, HERE / "requirements.txt", "the Python peers", lambda: sys.executable
    ),
)
WHEELS = Need(
    "wheels",
    functools.partial(
        provide_python,
        WHEELS_PLACE,
        HERE / "requirements-wheels.txt",
        "the Python peers that are wheels",
        lambda: sys.executable,
    ),
)
NODE = Need(
    "npm packages",
    functools.partial(
        provide_node, NODE_PLACE, HERE / "package.json", "the Node.js peer (compiling better-sqlite3 takes a minute)"
    ),
)
REDIS = Need("Redis", _provide_redis)


def redis_command() -> list[str] | None:
    """How to start Redis here, if it can be."""
    installed = shutil.which("redis-server")
    if installed is not None:
        return [installed]
    binary = REDIS_PLACE / "usr" / "bin" / "redis-server"
    if not binary.exists():
        return None
    libraries = os.pathsep.join(str(path) for path in sorted((REDIS_PLACE / "usr" / "lib").iterdir()))
    command = ["env", f"LD_LIBRARY_PATH={libraries}", str(binary)]
    works = subprocess.run([*command, "--version"], capture_output=True, check=False).returncode == 0
    return command if works else None


def redis_version() -> str:
    command = redis_command()
    assert command is not None
    told = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
    return told.partition("v=")[2].partition(" ")[0]


def python_versions(*packages: str, place: Path = PYTHON_PLACE) -> dict[str, str]:
    """The versions of distributions in an environment of Python peers."""
    program = "import importlib.metadata as m, json, sys; print(json.dumps({n: m.version(n) for n in sys.argv[1:]}))"
    command = [str(place / "bin" / "python"), "-c", program, *packages]
    found: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def _stands(place: Path, wanted: str) -> bool:
    mark = place / ".installed"
    return mark.exists() and mark.read_text() == wanted


def _mark(place: Path, wanted: str) -> None:
    (place / ".installed").write_text(wanted)


def _run(command: list[str], folder: Path = PLACE) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    log = PLACE / "install.log"
    log.unlink(missing_ok=True)
    processes.call(command, env=os.environ, log=log, patience=_PATIENCE, folder=folder)


def _tell(what: str) -> None:
    print(f"installing {what} into {PLACE.relative_to(PLACE.parents[1])} …", flush=True)
