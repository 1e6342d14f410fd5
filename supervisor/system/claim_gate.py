"""Whether the workers of this supervisor may claim now, and what time it is: words that all its processes share.

With a server, a supervisor may claim only while it has a lease: other hosts give its jobs away when that has ended. The
maintainer renews it and notes here until when it certainly holds, so it ends for the workers even if nobody is left to
tell them. They also take the time from here, since several hosts must agree on it.
"""

from __future__ import annotations

from collections.abc import Callable
from time import CLOCK_BOOTTIME, clock_gettime, time

_NEEDED, _UNTIL, _CLOCK, _GENERATION, _DRAINED = range(5)
GATE_BYTES = 5 * 8


def boot_time() -> float:
    """Seconds that also count while the machine is suspended, and that nobody sets."""
    return clock_gettime(CLOCK_BOOTTIME)


class ClaimGate:
    """Written by the maintainer, read by any process. Without a lease to renew it is open, unless drained."""

    __slots__ = ("_floats", "_ints")

    def __init__(self, view: memoryview) -> None:
        self._ints = view.cast("q")
        self._floats = view.cast("d")

    # Any process

    def is_open(self) -> bool:
        """Whether jobs may be claimed now. Cheap: asked before every claim."""
        ints = self._ints
        return not ints[_DRAINED] and (not ints[_NEEDED] or boot_time() < self._floats[_UNTIL])

    @property
    def drained(self) -> bool:
        return bool(self._ints[_DRAINED])

    @property
    def lapsed(self) -> bool:
        """Whether there is a lease to renew, and it may have ended."""
        return bool(self._ints[_NEEDED]) and boot_time() >= self._floats[_UNTIL]

    @property
    def generation(self) -> int:
        """Changes when the workers must register again, because others may have taken this supervisor for dead."""
        return self._ints[_GENERATION]

    def now(self) -> float:
        """Unix seconds: the server's, if there is one, otherwise this machine's."""
        clock = self._floats[_CLOCK]
        return clock + boot_time() if clock else time()

    @property
    def clock(self) -> Callable[[], float]:
        """`now`, or what is quicker and means the same."""
        return self.now if self._ints[_NEEDED] else time

    # The maintainer

    def need_lease(self) -> None:
        """Closed, until a lease is noted."""
        self._ints[_NEEDED] = 1

    def renewed(self, until: float, clock: float, *, again: bool) -> None:
        """There is a lease until then, by `boot_time`; `clock` is how far the server's clock is ahead of that.

        `again`: others may have given its jobs away in the meantime.
        """
        if again:
            self._ints[_GENERATION] += 1
        self._floats[_CLOCK] = clock
        self._floats[_UNTIL] = until

    def drain(self, whether: bool) -> None:
        self._ints[_DRAINED] = whether
