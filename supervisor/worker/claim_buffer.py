"""The claims a worker holds: some finished, one running, the rest not started."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement, released


class ClaimBuffer:
    """Shared by the worker's main thread and its heartbeat thread without a lock.

    Each claim and each settlement is removed by a single `popleft`, which is atomic, so exactly one of the
    two threads gets it.
    """

    def __init__(self) -> None:
        self._waiting: deque[Claim] = deque()
        self._finished: deque[Settlement] = deque()  # of runs that have ended
        self._returned: deque[Settlement] = deque()  # of claims that were not started

    def take(self, claims: Iterable[Claim]) -> None:
        self._waiting.extend(claims)

    def next(self) -> Claim | None:
        """The next claim to run."""
        if not self._waiting:
            return None
        try:
            return self._waiting.popleft()
        except IndexError:  # the other thread was faster
            return None

    def return_first(self, claim: Claim) -> None:
        """Do not run it now: put it back at the front."""
        self._waiting.appendleft(claim)

    def finish(self, settlement: Settlement) -> None:
        self._finished.append(settlement)

    def put_back(self, settlements: Sequence[Settlement], runs: int) -> None:
        """Put back what `collect` returned and could not be written yet."""
        self._finished.extend(settlements[:runs])
        self._returned.extend(settlements[runs:])

    def give_back(self, claims: Iterable[Claim]) -> None:
        """They are not run: settlements that return them to the queue."""
        self._returned.extend(map(released, claims))

    def release(self) -> None:
        """Turn the claims that were not started into settlements that return them to the queue."""
        while (claim := self.next()) is not None:
            self.give_back([claim])

    def collect(self) -> tuple[list[Settlement], int]:
        """Everything that is ready to be settled, and how many of these, counted from the front, are of runs that
        have ended. The first caller gets them.
        """
        settlements: list[Settlement] = []
        _move(self._finished, settlements)
        runs = len(settlements)
        if self._returned:
            _move(self._returned, settlements)
        return settlements, runs

    @property
    def waiting(self) -> int:
        """Claims whose run has not started."""
        return len(self._waiting)

    @property
    def finished(self) -> int:
        """Runs that have ended and are not committed yet."""
        return len(self._finished)

    @property
    def returned(self) -> int:
        """Claims that are to return to the queue."""
        return len(self._returned)

    def __len__(self) -> int:
        """Claims that are not settled yet, without those that run."""
        return len(self._waiting) + len(self._finished) + len(self._returned)


def _move(settlements: deque[Settlement], to: list[Settlement]) -> None:
    while settlements:
        try:
            to.append(settlements.popleft())
        except IndexError:
            break
