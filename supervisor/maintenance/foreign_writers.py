"""See that other programs get their turn at writing, however busy the workers are."""

from __future__ import annotations

from dataclasses import dataclass

from supervisor.maintenance.duty import Duty, Result
from supervisor.store.base import Chores


@dataclass(frozen=True, slots=True)
class Noticed(Result):
    writing: bool = False


class ForeignWriterMonitor(Duty):
    """Looks whether jobs are being inserted, and if so has our writers leave more of the time free."""

    name = "foreign writers"
    every = 60.0  # seconds, when nothing changes
    rest = 0.1
    quiet = True

    def __init__(self, chores: Chores) -> None:
        self._chores = chores
        self._inserted: int | None = None

    def run(self, now: float) -> Noticed:
        inserted = self._chores.inserted()
        writing = self._inserted is not None and inserted > self._inserted
        if writing:
            self._chores.yield_to_others()
        self._inserted = inserted
        return Noticed(writing)
