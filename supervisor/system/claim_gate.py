"""Whether the workers of this supervisor may claim now, and what time it is: words that all its processes share.

With a server, a supervisor may claim only while it has a lease: other hosts give its jobs away when that has ended. The
maintainer renews it and notes here until when it certainly holds, so it ends for the workers even if nobody is left to
tell them. They also take the time from here, since several hosts must agree on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import blake2b
from time import CLOCK_BOOTTIME, clock_gettime, time

MOST_PAUSED = 64  # types on one host
_NEEDED, _UNTIL, _CLOCK, _GENERATION, _DRAINED, _PAUSES = range(6)
_LISTS = 6  # two lists of paused types: the one that holds, and the one that is written next
_LIST = 1 + MOST_PAUSED  # how many they are, and a number for each
GATE_BYTES = (_LISTS + 2 * _LIST) * 8


def boot_time() -> float:
    """Seconds that also count while the machine is suspended, and that nobody sets."""
    return clock_gettime(CLOCK_BOOTTIME)


class ClaimGate:
    """Written by the maintainer, read by any process. Without a lease to renew it is open, unless drained."""

    __slots__ = ("_floats", "_ints", "_selected")

    def __init__(self, view: memoryview) -> None:
        self._ints = view.cast("q")
        self._floats = view.cast("d")
        self._selected: dict[tuple[str, ...], tuple[int, tuple[str, ...]]] = {}

    # Any process

    def is_open(self) -> bool:
        """Whether jobs may be claimed now. Cheap: asked before every claim."""
        ints = self._ints
        return not ints[_DRAINED] and (not ints[_NEEDED] or boot_time() < self._floats[_UNTIL])

    @property
    def drained(self) -> bool:
        return bool(self._ints[_DRAINED])

    def unpaused(self, types: tuple[str, ...]) -> tuple[str, ...]:
        """Those of these types that are not paused on this host. Cheap: asked before every claim."""
        version = self._ints[_PAUSES]
        if not version:
            return types
        known = self._selected.get(types)
        if known is None or known[0] != version:
            version, paused = self._paused()
            left = tuple(type_ for type_ in types if _number_of(type_) not in paused)
            known = self._selected[types] = version, types if left == types else left
        return known[1]

    def _paused(self) -> tuple[int, set[int]]:
        """The version of what is paused, and the numbers of these types."""
        while True:
            version = self._ints[_PAUSES]
            at = _list_at(version)
            found = set(self._ints[at + 1 : at + 1 + self._ints[at]])
            if self._ints[_PAUSES] == version:
                return version, found

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

    def pause(self, types: Iterable[str]) -> None:
        """These types, at most MOST_PAUSED, are paused on this host, and no others. It holds as a whole, or not yet."""
        ints = self._ints
        numbers = sorted({_number_of(type_) for type_ in types})[:MOST_PAUSED]
        version, paused = self._paused()
        if set(numbers) == paused:
            return
        at = _list_at(version + 1)
        ints[at] = len(numbers)
        for place, number in enumerate(numbers, at + 1):
            ints[place] = number
        ints[_PAUSES] = version + 1


def _list_at(version: int) -> int:
    return _LISTS + version % 2 * _LIST


def _number_of(type_: str) -> int:
    return int.from_bytes(
        blake2b(type_.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little", signed=True
    )
