"""The jobs that somebody was told of before a change of many: what is confirmed is those, not their number."""

from __future__ import annotations

import secrets
import time
from array import array
from dataclasses import dataclass

KEPT = 600.0  # seconds that somebody may think about it
MOST_IDS = 1_000_000  # of one snapshot
_MOST_TOGETHER = 2_000_000  # of all that are kept: 16 MB


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`change` is what was going to be done; `made_at` is monotonic seconds."""

    change: str
    ids: array[int]
    made_at: float


class Snapshots:
    """Bounded in number, length and time; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._kept: dict[str, Snapshot] = {}

    def keep(self, change: str, ids: array[int]) -> str:
        """The name by which these ids can be taken."""
        name = secrets.token_urlsafe(12)
        self._kept[name] = Snapshot(change, ids, time.monotonic())
        self._forget()
        return name

    def take(self, change: str, name: str) -> array[int] | None:
        """The ids, once; None: it is unknown, too old, or of another change."""
        self._forget()
        found = self._kept.get(name)
        if found is None or found.change != change:
            return None
        del self._kept[name]
        return found.ids

    def _forget(self) -> None:
        oldest = time.monotonic() - KEPT
        names = [name for name, kept in self._kept.items() if kept.made_at < oldest]
        together = sum(len(kept.ids) for kept in self._kept.values())
        for name in [name for name in self._kept if name not in names][:-1]:
            if together <= _MOST_TOGETHER:
                break
            together -= len(self._kept[name].ids)
            names.append(name)
        for name in names:
            del self._kept[name]
