"""When an expired lock may be taken: after it was observed for a while, expired and unchanged throughout.

A live owner renews its locks every `renewal_interval`, and a renewed lock differs from the one that was
observed. So an observer that has watched a lock for longer than that, on a monotonic clock and while writing was
possible, knows that its owner does not renew it, whatever the wall clock says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Row = TypeVar("Row", bound=Hashable)

# The share of the time between two looks that one look can prove at most. With a share this small, an owner still has
# time to renew if the whole machine was frozen once and the database blocked once, and the observer saw neither.
_CREDIT = 1.25


def renewal_interval(lock_time: float) -> float:
    """Seconds between two renewals of locks that hold for `lock_time` seconds."""
    return max(0.1, lock_time / 6)


def patience(lock_time: float) -> float:
    """Seconds for which such a lock is observed before it is taken: at least two renewals."""
    return max(0.4, lock_time / 3)


@dataclass(frozen=True, slots=True)
class LeaseObserver(Generic[Row]):
    """What one observer has seen. A row is a lock exactly as stored: a renewed lock is a different row.

    `every` is the planned time between two looks, `looked` the time of the last look, `watched` the time for
    which it has seen each row: all in seconds of its own monotonic clock.
    """

    every: float
    looked: float = 0.0
    watched: Mapping[Row, float] = field(default_factory=dict)

    def look(self, rows: Iterable[Row], at: float, *, writable: bool) -> LeaseObserver[Row]:
        """These rows have expired. If writing was not possible, their owners could not renew: start again.

        A late look proves no more than one that is on time: the observer may have been stopped together with
        the owners.
        """
        credit = min(at - self.looked, self.every * _CREDIT)
        seen = self.watched if writable else {}
        return LeaseObserver(self.every, at, {row: seen[row] + credit if row in seen else 0.0 for row in rows})
