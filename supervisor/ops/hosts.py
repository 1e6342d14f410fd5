"""The hosts for which operators can set something."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

from supervisor.config.checks import host_pattern
from supervisor.config.machine import own_host
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import text_of
from supervisor.ops.posted import living, seen
from supervisor.store.base import Operations


class UnknownHost(ConfigError):
    """No supervisor of that host is registered."""


def require_host(operations: Operations, host: str) -> None:
    """Raises UnknownHost if no supervisor runs on a host of that name."""
    _require(operations, host, lambda known: known == host)


def require_hosts(operations: Operations, pattern: str) -> None:
    """The same for a name or a pattern. Raises ConfigError for what cannot be either."""
    check_hosts(pattern)
    _require(operations, pattern, lambda known: fnmatchcase(known, pattern))


def check_hosts(pattern: str) -> None:
    """Raises ConfigError for what is neither the name of a host nor a pattern."""
    try:
        host_pattern(pattern)
    except ValueError as error:
        raise ConfigError([f"host: {error}"]) from None


def _require(operations: Operations, host: str, matches: Callable[[str], bool]) -> None:
    known = {record.host for record in living(operations)}
    if operations.statistics.server() is None:
        known.add(own_host("sqlite:"))  # the only one that there is, also before a supervisor runs
    if not any(map(matches, known)):
        there = f"supervisors run on {_named(known)}" if known else "no supervisor is running"
        raise UnknownHost([f"no supervisor runs on the host {host!r}; {there}"])


def require_pool(operations: Operations, pool: str, host: str) -> None:
    """Raises UnknownHost if the supervisors of these hosts, as far as they can be seen, have no such pool."""
    here = [one for one in seen(operations) if one.alive is not False and fnmatchcase(one.record.host, host)]
    pools = {name for one in here if one.status for name in one.status.get("pools", {})}
    if pools and pool not in pools:
        raise UnknownHost([f"the pool {pool!r} does not run on {host}; the pools there are {_named(pools)}"])


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(text_of, names)))
