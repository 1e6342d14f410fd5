"""How far a pool grows beyond its configured size, because an operator or a row of `job_controls` says so.

A mistyped number must not use up the machine, nor all connections of the database: nobody could undo it.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

NO_CONNECTION = "it has no free connection"  # in the error of a worker that the database refuses for this reason
MOST_STARTING = 8  # workers that start at the same time
_AGAIN = 60.0  # seconds after which it grows again
_LEFT_FREE = 3  # connections, or a tenth of its own


class Beyond(NamedTuple):
    """`most` workers, until a monotonic second. Without a limit it is infinite."""

    most: float = inf
    until: float = 0.0

    def seen(self, ready: int, refused: int, configured: int, now: float) -> Beyond:
        """The limit after a look: so many workers are ready, and the database refuses so many that are starting."""
        if not refused:
            return Beyond() if now >= self.until else self
        most = max(configured, ready - max(_LEFT_FREE, ready // 10))
        return Beyond(min(self.most, most) if now < self.until else most, now + _AGAIN)
