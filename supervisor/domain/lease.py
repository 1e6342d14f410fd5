"""When an expired lock may be taken: after it has been watched for a while, expired and unchanged all the time.

An owner that lives renews its locks every `renewal_interval`, and a renewed lock is not the one that was
seen. So whoever has watched a lock for longer than that, on a monotonic clock and while writing was
possible, knows that its owner does not renew, whatever the wall clock says.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Row = TypeVar("Row", bound=Hashable)

# Of the time between two looks: what one look can prove at most. With as little as this, an owner still has the
# time to renew if the whole machine was frozen once and the database blocked once, and the watcher saw neither.
_CREDIT = 1.25


def renewal_interval(lock_time: float) -> float:
    """Seconds between two renewals of locks that hold for `lock_time` seconds."""
    return max(0.1, lock_time / 6)


def patience(lock_time: float) -> float:
    """Seconds for which such a lock is watched before it is taken: at least two renewals."""
    return max(0.4, lock_time / 3)


@dataclass(frozen=True, slots=True)
class LeaseObserver(Generic[Row]):
    """What one watcher has seen. A row is a lock exactly as it stands: a renewed one is another row.

    `every` is the time that it means to leave between two looks, `looked` when it last looked, `watched`
    for how long it has seen each row: all in seconds of its own monotonic clock.
    """

    every: float
    looked: float = 0.0
    watched: Mapping[Row, float] = field(default_factory=dict)

    def look(self, rows: Iterable[Row], at: float, *, writable: bool) -> LeaseObserver[Row]:
        """These rows have expired. Where writing was not possible, their owners could not renew: start again.

        A look that comes late proves no more than one that is in time: the watcher may have been stopped
        together with the owners.
        """
        credit = min(at - self.looked, self.every * _CREDIT)
        seen = self.watched if writable else {}
        return LeaseObserver(self.every, at, {row: seen[row] + credit if row in seen else 0.0 for row in rows})
