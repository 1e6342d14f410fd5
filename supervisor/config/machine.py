"""What a configuration needs of this machine: its name, cores, memory and programs."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from supervisor.config.checks import shown, usable_cores
from supervisor.config.pool_settings import PoolSettings
from supervisor.config.problems import Report
from supervisor.config.settings import Settings
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import no_pool


def here() -> Path:
    """The current folder under the name by which it was entered, $PWD: if that is a link, it can be followed again
    when it has been moved. Without such a name, the folder's own.
    """
    entered = Path(os.environ.get("PWD", ""))
    with contextlib.suppress(OSError):
        if entered.is_absolute() and entered.samefile("."):
            return entered
    link = Path("/proc/self/cwd")  # unlike Path.cwd(), no error if the folder is deleted
    return link.readlink() if link.is_symlink() else Path.cwd()


HOST_VARIABLE = "SUPERVISOR_HOST"
_OWN_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


def own_host(database: str) -> str:
    """`$SUPERVISOR_HOST`, else the system's name; always that with SQLite, which has one host. Raises ConfigError."""
    if database.startswith("sqlite:"):
        return os.uname().nodename
    name = os.environ.get(HOST_VARIABLE) or os.uname().nodename
    if not _OWN_NAME.fullmatch(name):
        raise ConfigError(
            [f"${HOST_VARIABLE}: {name!r} is not a host name; it may have 1 to 253 of a-z A-Z 0-9 _ . : -"]
        )
    return name


def runs_on(pool: PoolSettings, host: str) -> bool:
    return not pool.hosts or any(fnmatchcase(host, pattern) for pattern in pool.hosts)


def elsewhere(pools: Mapping[str, PoolSettings], host: str) -> dict[str, str]:
    """The pools that do not run on this host, each with where it does."""
    return {name: ", ".join(pool.hosts) for name, pool in pools.items() if not runs_on(pool, host)}


def of_host(settings: Settings, names: Collection[str], host: str) -> Settings:
    """The settings with the pools that run on this host: those of these names, or all without names.

    Raises ConfigError for a name of a pool that does not, and if there is none at all.
    """
    pools, away = settings.pools, elsewhere(settings.pools, host)
    wrong = [f"{settings.path}: {no_pool(name, pools)}" for name in names if name not in pools]
    wrong += [f"the pool {name} runs on {away[name]}, not on the host {host}" for name in names if name in away]
    found = {name: pools[name] for name in (names or pools) if name in pools and name not in away}
    if not (wrong or found):
        told = "; ".join(f"{name} on {where}" for name, where in away.items())
        wrong = [f"no pool runs on the host {host}: {told}"]
    if wrong:
        raise ConfigError(wrong)
    return settings._replace(pools=found)


def executable(program: str, folder: Path, env: Mapping[str, str]) -> str:
    """The file to execute for the first word of a command.

    A name without a slash is searched on PATH, first the one in `env` (the pool's), then our own; a relative
    path starts at `folder`, the configuration's. Raises ValueError with one sentence.
    """
    if "/" not in program:
        from shutil import which  # imported here: it loads much, and a command only looks at the names of pools

        path = env.get("PATH", os.environ.get("PATH", os.defpath))
        found = which(program, path=os.pathsep.join(str(folder / entry) for entry in path.split(os.pathsep)))
        if found is None:
            raise ValueError(f"there is no program {shown(program)} on PATH; give its full path")
        return found
    file = folder / program
    if not file.is_file() or not os.access(file, os.X_OK):
        raise ValueError(f"there is no program {file}, or it is not executable")
    return str(file)


def report_missing(settings: Settings, report: Report, names: Collection[str] = ()) -> None:
    """Report the programs and the cores that are not there, of the pools of these names or of all pools."""
    ours = usable_cores()
    for name, pool in settings.pools.items():
        if names and name not in names:
            continue
        try:
            if pool.command:
                executable(pool.command[0], settings.folder, pool.env)
        except ValueError as error:
            report.add(("pools", name, "command"), str(error))
        if absent := sorted(set(pool.cpu_affinity) - ours):
            lacking, there = (", ".join(map(str, cores)) for cores in (absent, sorted(ours)))
            what = f"{'core' if len(absent) == 1 else 'cores'} {lacking} is not available; there are {there}"
            report.add(("pools", name, "cpu_affinity"), what)
