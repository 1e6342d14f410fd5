"""Settle what a dead worker held, so that one row that cannot be written keeps none of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from supervisor.domain.errors import StoreError, StoreUnavailable
from supervisor.domain.job import Claim
from supervisor.domain.settlement import Settlement
from supervisor.maintenance.counting import Counter
from supervisor.store.base import Chores

Decide = Callable[[list[Claim]], list[Settlement]]


class DeadClaims:
    """One transaction a worker; if that is refused, one a claim. What is refused then is tried again by the next call,
    with what was decided: which job had begun cannot be told any more when others have gone back.
    """

    def __init__(self, chores: Chores, counter: Counter) -> None:
        self._chores = chores
        self._counter = counter
        self._refused: dict[str, list[Settlement]] = {}

    def settle(self, incarnation: str, name: str, decide: Decide, now: float) -> tuple[int, list[Settlement]]:
        """Returns how many claims were settled, and all that was decided. Raises what refused one of them."""
        settlements = self._refused.get(incarnation) or decide(self._chores.held_by(incarnation))
        try:
            count = self._settle(incarnation, name, settlements, now)
        except StoreUnavailable:
            raise
        except StoreError:
            if not settlements:
                raise
            count = self._settle_singly(incarnation, name, settlements, now)
        self._refused.pop(incarnation, None)
        return count, settlements

    def _settle(self, incarnation: str, name: str, settlements: Sequence[Settlement], now: float) -> int:
        count = self._chores.settle_dead(incarnation, settlements, now, worker=name)
        self._counter.settled(settlements, count, now)
        return count

    def _settle_singly(self, incarnation: str, name: str, settlements: list[Settlement], now: float) -> int:
        count, refused, last = 0, [], None
        for settlement in settlements:
            try:
                settled = self._chores.settle_dead(incarnation, [settlement], now, worker=name, forget=False)
            except StoreUnavailable:
                raise
            except StoreError as error:
                refused.append(settlement)
                last = error
            else:
                self._counter.settled([settlement], settled, now)
                count += settled
        if last is not None:
            self._refused[incarnation] = refused
            raise last
        self._chores.settle_dead(incarnation, [], now, worker=name)
        return count
