"""The name of this host, and which pools run on it."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from supervisor.config.settings import PoolSettings
from supervisor.domain.errors import ConfigError

VARIABLE = "SUPERVISOR_HOST"
_PATTERN = re.compile(r"[A-Za-z0-9_.:*?\[\]!-]{1,253}")
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")


def host_pattern(value: str) -> str:
    """Raises ValueError for what no name of a host can match."""
    if not _PATTERN.fullmatch(value):
        raise ValueError(
            f'{value!r} is not the name of a host; write it like "gpu-1", or "gpu-*" for all that begin so'
        )
    return value


def own_host(database: str) -> str:
    """`$SUPERVISOR_HOST`, else the system's name; always that with SQLite, which has one host. Raises ConfigError."""
    if database.startswith("sqlite:"):
        return socket.gethostname()
    name = os.environ.get(VARIABLE) or socket.gethostname()
    if not _NAME.fullmatch(name):
        raise ConfigError([f"${VARIABLE}: {name!r} is not a host name; it may have 1 to 253 of a-z A-Z 0-9 _ . : -"])
    return name


def runs_on(pool: PoolSettings, host: str) -> bool:
    return not pool.hosts or any(fnmatchcase(host, pattern) for pattern in pool.hosts)


def elsewhere(pools: Mapping[str, PoolSettings], host: str) -> dict[str, str]:
    """The pools that do not run on this host, each with where it does."""
    return {name: ", ".join(pool.hosts) for name, pool in pools.items() if not runs_on(pool, host)}


def of_host(pools: Mapping[str, PoolSettings], names: Iterable[str], host: str) -> dict[str, PoolSettings]:
    """The pools that run on this host: of these names, or of all without names.

    Raises ConfigError for a name of a pool that does not, and if there is none at all.
    """
    away = elsewhere(pools, host)
    named = list(names)
    wrong = [f"the pool {name} runs on {away[name]}, not on the host {host}" for name in named if name in away]
    found = {name: pools[name] for name in (named or pools) if name not in away}
    if not (wrong or found):
        told = "; ".join(f"{name} on {where}" for name, where in away.items())
        wrong = [f"no pool runs on the host {host}: {told}"]
    if wrong:
        raise ConfigError(wrong)
    return found
