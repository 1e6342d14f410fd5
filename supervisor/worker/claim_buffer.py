"""The claims in a worker's hand: some finished, one running, the rest not begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement, released


class ClaimBuffer:
    """Shared by the worker's main thread and its pulse without a lock.

    Each claim and each settlement leaves by a single `popleft`, which is atomic, so exactly one of the
    two threads gets it.
    """

    def __init__(self) -> None:
        self._waiting: deque[Claim] = deque()
        self._finished: deque[Settlement] = deque()  # of runs that have ended
        self._returned: deque[Settlement] = deque()  # of what has not begun

    def take(self, claims: Iterable[Claim]) -> None:
        self._waiting.extend(claims)

    def next(self) -> Claim | None:
        """The claim to run now."""
        if not self._waiting:
            return None
        try:
            return self._waiting.popleft()
        except IndexError:  # the other thread was quicker
            return None

    def return_first(self, claim: Claim) -> None:
        """Not now after all: it is the next again."""
        self._waiting.appendleft(claim)

    def finish(self, settlement: Settlement) -> None:
        self._finished.append(settlement)

    def put_back(self, settlements: Sequence[Settlement], runs: int) -> None:
        """What `collect` gave, and could not be written yet."""
        self._finished.extend(settlements[:runs])
        self._returned.extend(settlements[runs:])

    def release(self) -> None:
        """Turn what has not begun into settlements that give it back."""
        while (claim := self.next()) is not None:
            self._returned.append(released(claim))

    def collect(self) -> tuple[list[Settlement], int]:
        """Everything that is ready to be settled, and how many of these, the first, are of runs that have ended.
        Whoever calls first gets it.
        """
        settlements: list[Settlement] = []
        _move(self._finished, settlements)
        runs = len(settlements)
        if self._returned:
            _move(self._returned, settlements)
        return settlements, runs

    @property
    def waiting(self) -> int:
        """Claims whose run has not begun."""
        return len(self._waiting)

    @property
    def finished(self) -> int:
        """Runs that have ended, and are not committed."""
        return len(self._finished)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._finished or self._returned)


def _move(settlements: deque[Settlement], to: list[Settlement]) -> None:
    while settlements:
        try:
            to.append(settlements.popleft())
        except IndexError:
            break
