"""What supervisors have registered in the database, and posted on their scoreboards, or there for other hosts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from supervisor.maintenance.lease import PublishedBoard, read_published
from supervisor.maintenance.waking import present_workers
from supervisor.store.base import Lease, Operations, SupervisorRecord
from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot


def registered(operations: Operations) -> Iterator[tuple[SupervisorRecord, bool | None, Scoreboard | None]]:
    """Every supervisor of the registry, whether it lives (None: unknown), and its scoreboard if it can be read."""
    for record in operations.registry.supervisors():
        alive = operations.registry.owner_lives(record)
        yield record, alive, None if alive is False else Scoreboard.open(Path(record.scoreboard))


class Seen(NamedTuple):
    """One supervisor: whether it lives (None: unknown), and what is to be seen of it from here. `local`: on its
    scoreboard, otherwise what it has posted in the last seconds; `status` is None if neither can be read.
    `drained`: its workers claim nothing any more.
    """

    record: SupervisorRecord
    alive: bool | None
    lease: Lease | None
    status: dict[str, Any] | None
    workers: list[Snapshot]
    local: bool
    drained: bool = False


def seen(operations: Operations, now: float = 0.0) -> Iterator[Seen]:
    """Every supervisor of the registry. `now` is Unix seconds, for how long jobs have been running elsewhere."""
    leases = operations.registry.leases()
    for record, alive, board in registered(operations):
        lease = leases.get(record.id)
        if board is not None:
            workers = [slot for _, slot in present_workers(board)]
            yield Seen(record, alive, lease, board.supervisor_status(), workers, local=True, drained=board.gate.drained)
            continue
        posted: PublishedBoard | None = (
            read_published(lease.posted, now) if alive and lease is not None and lease.posted else None
        )
        if posted is None:
            yield Seen(record, alive, lease, None, [], local=False)
        else:
            workers = list(posted.workers.values())
            yield Seen(record, alive, lease, posted.status, workers, local=False, drained=posted.drained)


def living(operations: Operations) -> list[SupervisorRecord]:
    """The supervisors that are not known to be dead."""
    registry = operations.registry
    return [record for record in registry.supervisors() if registry.owner_lives(record) is not False]


def pools_of(operations: Operations) -> list[tuple[str, dict[str, Any]]]:
    """The pools of the supervisors that are not known to be dead, by name, as far as this user can see them."""
    return [pool for one in seen(operations) for pool in (one.status or {}).get("pools", {}).items()]


def types_taken(operations: Operations, pool: str | None = None) -> list[str]:
    """The types that running supervisors take, or that only their pools of that name take."""
    taken = [posted.get("types", ()) for name, posted in pools_of(operations) if pool in (None, name)]
    return list(dict.fromkeys(type_ for types in taken for type_ in types))
