"""What supervisors have registered in the database, and posted on their scoreboards."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from supervisor.store.base import Operations, SupervisorRecord
from supervisor.system.scoreboard import Scoreboard


def registered(operations: Operations) -> Iterator[tuple[SupervisorRecord, bool | None, Scoreboard | None]]:
    """Every supervisor of the registry, whether it lives (None: unknown), and its scoreboard if it can be read."""
    for record in operations.registry.supervisors():
        alive = operations.registry.owner_lives(record)
        yield record, alive, None if alive is False else Scoreboard.open(Path(record.scoreboard))


def living(operations: Operations) -> list[SupervisorRecord]:
    """The supervisors that are not known to be dead."""
    registry = operations.registry
    return [record for record in registry.supervisors() if registry.owner_lives(record) is not False]


def pools_of(operations: Operations) -> list[tuple[str, dict[str, Any]]]:
    """The pools of the supervisors that are not known to be dead, by name, as far as this user can read them."""
    boards = [board for _, _, board in registered(operations) if board is not None]
    return [pool for board in boards for pool in board.supervisor_status().get("pools", {}).items()]


def types_taken(operations: Operations, pool: str | None = None) -> list[str]:
    """The types that running supervisors take, or that only their pools of that name take."""
    taken = [posted.get("types", ()) for name, posted in pools_of(operations) if pool in (None, name)]
    return list(dict.fromkeys(type_ for types in taken for type_ in types))
