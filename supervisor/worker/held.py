"""What a worker has claimed and not settled, without the runs that are on."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement, released

MANY_CHILDREN = 1000  # jobs that the runs of one transaction may enqueue together: other writers wait for it


class Held:
    """The claims whose run has not begun, and the outcomes of runs that are not committed.

    Runs end, and claims are taken to be run, in any thread without a lock: each moves by a single `append` or
    `popleft`, so exactly one gets it. `in_order`: runs end in the order in which they have begun.
    """

    def __init__(self) -> None:
        self.in_order = True
        self._not_begun: deque[Claim] = deque()
        self._ended: deque[Settlement] = deque()
        self._returned: deque[Settlement] = deque()  # of claims that are not run

    def __len__(self) -> int:
        return len(self._not_begun) + len(self._ended) + len(self._returned)

    @property
    def waiting(self) -> int:
        """Claims whose run has not begun."""
        return len(self._not_begun)

    @property
    def unsettled(self) -> int:
        """Outcomes that are not committed, and claims that are to return."""
        return len(self._ended) + len(self._returned)

    # By runners

    def next(self) -> Claim | None:
        """The next claim to run."""
        try:
            return self._not_begun.popleft()
        except IndexError:
            return None

    def ended(self, settlement: Settlement) -> None:
        """A run has ended; its outcome is committed with the next turn."""
        self._ended.append(settlement)

    def give_back(self, claims: Iterable[Claim]) -> None:
        """They are not run: they return to the queue with the next turn."""
        self._returned.extend(map(released, claims))

    def release(self) -> None:
        """The claims that have not begun return to the queue with the next turn."""
        while (claim := self.next()) is not None:
            self.give_back([claim])

    # By the exchange

    def add(self, claims: Iterable[Claim]) -> None:
        self._not_begun.extend(claims)

    def take_settlements(self, most: int | None = None) -> tuple[list[Settlement], int]:
        """What is to be settled now, and how many of these, counted from the front, are of runs that have ended."""
        settlements: list[Settlement] = []
        children = 0
        while self._ended and len(settlements) != most and children < MANY_CHILDREN:
            settlements.append(self._ended.popleft())
            children += len(settlements[-1].children)
        runs = len(settlements)
        if not self.in_order:
            settlements.sort(key=_started)
        while self._returned and len(settlements) != most:
            settlements.append(self._returned.popleft())
        return settlements, runs

    def put_back(self, settlements: Sequence[Settlement], runs: int) -> None:
        """They could not be settled: the next `take_settlements` returns them again."""
        self._ended.extendleft(reversed(settlements[:runs]))
        self._returned.extendleft(reversed(settlements[runs:]))


def _started(settlement: Settlement) -> float:
    return settlement.started_at or 0.0
