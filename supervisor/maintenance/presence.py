"""See that the database's name still leads to the file that we have open."""

from __future__ import annotations

from supervisor.store.base import Chores


class Presence:
    """Nobody writes into a file that has lost its name; but an idle supervisor would not notice, so this looks."""

    every = 1.0  # seconds

    def __init__(self, chores: Chores) -> None:
        self._chores = chores

    def run_once(self, now: float) -> bool:
        """True: it is there. Raises StoreGone if it is not."""
        self._chores.insist_on_file()
        return True
