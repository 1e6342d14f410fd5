"""See that the database's name still leads to the file that we have open."""

from __future__ import annotations

from supervisor.maintenance.duty import Duty, Needs, Result
from supervisor.store.base import Chores


class FileCheck(Duty):
    """Nobody writes into a file that has lost its name; but an idle supervisor would not notice, so this looks."""

    name = "database file"
    every = 1.0  # seconds
    needs = Needs.NOTHING
    quiet = True

    def __init__(self, chores: Chores) -> None:
        self._chores = chores

    def run(self, now: float) -> Result:
        """Raises StoreGone if it is not there."""
        self._chores.insist_on_file()
        return Result()
