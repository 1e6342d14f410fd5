"""The workers of our supervisor, as the scoreboard shows them to the maintainer."""

from __future__ import annotations

from collections import Counter

from supervisor.system.scoreboard import Scoreboard
from supervisor.system.slot import Snapshot, State

PRESENT = (State.STARTING, State.IDLE, State.BUSY, State.DRAINING, State.SPARE)

_RESTING = (State.IDLE, State.DRAINING, State.SPARE)


def pool_of(worker: str) -> str:
    """The pool of a worker, from its name: `tag` for `tag-2`."""
    return worker.rpartition("-")[0]


class SlotReader:
    """Reads slots, copying only what is needed."""

    def __init__(self, board: Scoreboard) -> None:
        self._board = board

    def workers(self) -> list[Snapshot]:
        """A copy of every worker's slot."""
        slots = (self._board.slot(number).read() for number in range(1, self._board.highest + 1))
        return [slot for slot in slots if slot.state in PRESENT]

    def idle(self) -> Counter[str]:
        """The number of idle workers of each pool."""
        count: Counter[str] = Counter()
        for number in range(1, self._board.highest + 1):
            slot = self._board.slot(number)
            if slot.is_idle():
                count[pool_of(slot.name)] += 1
        return count

    def at_rest(self) -> tuple[bool, int]:
        """(whether no worker holds a claim or is starting, jobs done by all), to detect the end of a burst."""
        workers = self.workers()
        rest = all(w.state in _RESTING and w.claims == 0 and w.job == 0 for w in workers)
        return rest, sum(w.done for w in workers)
