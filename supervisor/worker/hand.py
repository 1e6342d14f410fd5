"""The claims in a worker's hand: some finished, one running, the rest not begun."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement, released


class Hand:
    """Shared by the worker's main thread and its pulse without a lock.

    Each claim and each settlement leaves by a single `popleft`, which is atomic, so exactly one of the
    two threads gets it.
    """

    def __init__(self) -> None:
        self._waiting: deque[Claim] = deque()
        self._finished: deque[Settlement] = deque()

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

    def put_back(self, settlements: Iterable[Settlement]) -> None:
        """Settlements that could not be written yet."""
        self._finished.extend(settlements)

    def release(self) -> None:
        """Turn what has not begun into settlements that give it back."""
        while (claim := self.next()) is not None:
            self._finished.append(released(claim))

    def collect(self) -> list[Settlement]:
        """Everything that is ready to be settled; whoever calls first gets it."""
        settlements = []
        while self._finished:
            try:
                settlements.append(self._finished.popleft())
            except IndexError:
                break
        return settlements

    def __bool__(self) -> bool:
        return bool(self._waiting or self._finished)
