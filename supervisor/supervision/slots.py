"""The slots of the scoreboard: which are free, and which worker has which."""

from __future__ import annotations

from supervisor.system.scoreboard import MAX_SLOTS, Scoreboard
from supervisor.system.slot import Slot


class Slots:
    """A slot is reused only after the end of its previous worker has been settled."""

    def __init__(self, board: Scoreboard) -> None:
        self._board = board
        self._free = list(range(MAX_SLOTS - 1, 0, -1))

    @property
    def full(self) -> bool:
        return not self._free

    def take(self, incarnation: str, name: str) -> tuple[int, Slot]:
        """Assign the lowest free slot to this worker."""
        number = self._free.pop()
        slot = self._board.slot(number)
        slot.assign(incarnation, name)
        self._board.use_up_to(number)
        return number, slot

    def give_back(self, number: int) -> None:
        self._board.slot(number).clear()
        self._free.append(number)
