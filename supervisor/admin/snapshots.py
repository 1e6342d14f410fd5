"""The jobs shown before a bulk change, so that the confirmation applies to exactly these jobs."""

from __future__ import annotations

import secrets
import time
from array import array
from dataclasses import dataclass

KEPT = 600.0  # seconds until an unconfirmed snapshot expires
MOST_IDS = 1_000_000  # of one snapshot
_MOST_TOGETHER = 2_000_000  # of all that are kept: 16 MB


@dataclass(frozen=True, slots=True)
class Snapshot:
    """`change` is the intended change; `made_at` is monotonic seconds."""

    change: str
    ids: array[int]
    made_at: float


class Snapshots:
    """Bounded in number, length and time; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._kept: dict[str, Snapshot] = {}

    def keep(self, change: str, ids: array[int]) -> str:
        """Store these ids and return the name of the snapshot."""
        name = secrets.token_urlsafe(12)
        self._kept[name] = Snapshot(change, ids, time.monotonic())
        self._forget()
        return name

    def take(self, change: str, name: str) -> array[int] | None:
        """The ids, only once; None if the name is unknown, expired, or of another change."""
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
