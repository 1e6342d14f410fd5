"""See that other programs get their turn at writing, however busy the workers are."""

from __future__ import annotations

import time
from dataclasses import dataclass

from supervisor.store.base import Chores

_SETTLE = 0.1  # seconds between two looks while the database is changing


@dataclass(frozen=True, slots=True)
class Noticed:
    writing: bool = False


class Courtesy:
    """Looks whether jobs are being inserted, and if so has our writers leave more of the time free."""

    every = 60.0  # seconds, when nothing tells it to look

    def __init__(self, chores: Chores) -> None:
        self._chores = chores
        self._dirty = True
        self._inserted: int | None = None
        self.settled_at = 0.0  # the earliest time for another look, in monotonic seconds

    def changed(self) -> None:
        self._dirty = True

    def run_once(self, now: float) -> Noticed:
        if not self._dirty:
            return Noticed()
        self._dirty = False
        self.settled_at = time.monotonic() + _SETTLE
        inserted = self._chores.inserted()
        writing = self._inserted is not None and inserted > self._inserted
        self._inserted = inserted
        if writing:
            self._chores.yield_to_others()
        return Noticed(writing)
