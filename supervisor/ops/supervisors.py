"""The supervisors of a database: who is registered, what each shows on its scoreboard or has published for other hosts,
and the rules for naming one of their hosts or pools.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.config.machine import own_host
from supervisor.domain.errors import ConfigError
from supervisor.domain.text import text_of
from supervisor.store.base import Lease, Operations, SupervisorRecord
from supervisor.system.published import read_published
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot

_LOOK_EVERY = 0.5  # seconds


class Unknown(ConfigError):
    """There is no pool, type, schedule or host of that name."""


def registered(operations: Operations) -> Iterator[tuple[SupervisorRecord, bool | None, Scoreboard | None]]:
    """Every supervisor of the registry, whether it lives (None: unknown), and its scoreboard if it can be read."""
    for record in operations.registry.supervisors():
        alive = operations.registry.owner_lives(record)
        yield record, alive, None if alive is False else Scoreboard.open(Path(record.scoreboard))


class Seen(NamedTuple):
    """One supervisor: whether it lives (None: unknown), and what is to be seen of it from here. `local`: on its
    scoreboard, otherwise what it has published in the last seconds; `status` is None if neither can be read.
    `drained`: its workers claim nothing any more.
    """

    record: SupervisorRecord
    alive: bool | None
    lease: Lease | None
    status: dict[str, Any] | None
    workers: list[Snapshot]
    local: bool
    drained: bool = False

    @property
    def pools(self) -> dict[str, dict[str, Any]]:
        pools: dict[str, dict[str, Any]] = (self.status or {}).get("pools", {})
        return pools


def seen(operations: Operations, now: float = 0.0) -> Iterator[Seen]:
    """Every supervisor of the registry. `now` is Unix seconds, for how long jobs have been running elsewhere."""
    leases = operations.registry.leases()
    for record, alive, board in registered(operations):
        lease = leases.get(record.id)
        if board is not None:
            workers = [slot for _, slot in board.present()]
            yield Seen(
                record, alive, lease, board.supervisor_status(), workers, local=True, drained=bool(board.gate.drained)
            )
        elif alive and lease is not None and lease.posted:
            published = read_published(lease.posted, now)
            workers = list(published.workers.values())
            yield Seen(record, alive, lease, published.status, workers, local=False, drained=published.drained)
        else:
            yield Seen(record, alive, lease, None, [], local=False)


def living(operations: Operations) -> list[SupervisorRecord]:
    """The supervisors that are not known to be dead."""
    registry = operations.registry
    return [record for record in registry.supervisors() if registry.owner_lives(record) is not False]


def pools_of(operations: Operations, host: str = "*") -> list[tuple[str, dict[str, Any]]]:
    """The pools of the supervisors of these hosts that are not known to be dead, by name, as far as they can be seen.

    `host` may be a pattern.
    """
    here = (one for one in seen(operations) if one.alive is not False and fnmatchcase(one.record.host, host))
    return [pool for one in here for pool in one.pools.items()]


def types_taken(operations: Operations, pool: str | None = None) -> list[str]:
    """The types that running supervisors take, or that only their pools of that name take."""
    taken = [posted.get("types", ()) for name, posted in pools_of(operations) if pool in (None, name)]
    return list(dict.fromkeys(type_ for types in taken for type_ in types))


def require_host(operations: Operations, host: str, pool: str = "") -> None:
    """Raises Unknown if no supervisor runs on a host of that name. With a pool, `host` may be a pattern, and Unknown is
    also raised if the supervisors there, as far as they can be seen, have no such pool.
    """
    known = {record.host for record in living(operations)}
    if operations.statistics.server() is None:
        known.add(own_host("sqlite:"))  # the only one that there is, also before a supervisor runs
    if not any(fnmatchcase(name, host) if pool else name == host for name in known):
        there = f"supervisors run on {_named(known)}" if known else "no supervisor is running"
        raise Unknown([f"no supervisor runs on the host {host!r}; {there}"])
    pools = {name for name, _ in pools_of(operations, host)} if pool else set()
    if pools and pool not in pools:
        raise Unknown([f"the pool {pool!r} does not run on {host}; the pools there are {_named(pools)}"])


def _named(names: Iterable[str]) -> str:
    return ", ".join(sorted(map(text_of, names)))


def claims_on(operations: Operations, host: str) -> int:
    """How many jobs the host's workers hold, as far as that is known here."""
    return sum(slot.claims for one in seen(operations) if one.record.host == host for slot in one.workers)


def await_drained(operations: Operations, host: str) -> None:
    """Return when all supervisors of a drained host know that, and no job of theirs runs. Of another host, that is
    known up to 5 s later.
    """
    while any(one.record.host == host and one.status is not None and not one.drained for one in seen(operations)) or (
        claims_on(operations, host)
    ):
        time.sleep(_LOOK_EVERY)
