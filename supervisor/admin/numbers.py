"""Counters that only grow, summed over all supervisors of the database, including those that have ended."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from supervisor.store.base import Operations
from supervisor.system import counters
from supervisor.system.counters import Counters
from supervisor.system.scoreboard import Scoreboard, counters_of

Restarts = Counter[tuple[str, str]]
"""How many workers were replaced, by pool and reason."""


@dataclass(slots=True)
class Numbers:
    """`wal_bytes` is the write-ahead log's length now; the others are sums that only grow."""

    counters: Counters = field(default_factory=Counters)
    restarts: Restarts = field(default_factory=Counter)
    wal_bytes: int = 0


class Ledger:
    """Remembers the counters of each supervisor. Without those of ended supervisors the sums would go down, which a
    scraper interprets as a restart.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()  # several threads call it
        self._seen: dict[str, Numbers] = {}
        self._gone = Numbers()

    def look(self, operations: Operations) -> Numbers:
        """Raises StoreError if the database cannot be used."""
        records = operations.registry.supervisors()
        total = Numbers(wal_bytes=operations.statistics.log_size())
        with self._guard:
            for record in records:
                self._note(record.id, Path(record.scoreboard))
            for supervisor in self._seen.keys() - {record.id for record in records}:
                _add(self._gone, self._seen.pop(supervisor))
            for numbers in (self._gone, *self._seen.values()):
                _add(total, numbers)
        return total

    def _note(self, supervisor: str, scoreboard: Path) -> None:
        """Update the counters of a supervisor. If they are gone or cannot be read, the last known values remain."""
        seen = self._seen.setdefault(supervisor, Numbers())
        counted = counters.read(counters_of(scoreboard))
        if counted.types or counted.store_busy or counted.locks_reclaimed:
            seen.counters = counted
        board = Scoreboard.open(scoreboard)
        pools = {} if board is None else board.supervisor_status().get("pools", {})
        for pool, news in pools.items():
            for reason, count in news.get("restarts", {}).items():
                seen.restarts[pool, reason] = max(seen.restarts[pool, reason], count)


def _add(total: Numbers, other: Numbers) -> None:
    total.counters.add(other.counters)
    total.restarts.update(other.restarts)
