"""Promises of a second or two are made for a machine that has time for us: what it had not does not count.

The kernel counts how long anybody waited for a CPU, or for the disk (`/proc/pressure`). While a test runs alone that is
little, and its bounds hold to the full. Beside many others it is most of the time.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

MOST = 10  # times a bound: no machine is so busy that anything may take longer


def waited(resource: str) -> float:
    """Seconds, since the machine was started, in which anybody waited for it; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        some = Path(f"/proc/pressure/{resource}").read_text().splitlines()[0]
        return int(some.rpartition("total=")[2]) / 1e6
    return 0.0


class Stopwatch:
    """Runs from when it is made."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._waited = self._all_waited()

    @staticmethod
    def _all_waited() -> tuple[float, float]:
        return waited("cpu"), waited("io")

    def seconds(self, wall: float | None = None) -> float:
        """How long it has run without what others kept us waiting, or how much of `wall` that is, which was measured
        meanwhile in another way. At least a tenth of it.
        """
        if wall is None:
            wall = time.monotonic() - self._began
        lost = max(now - before for now, before in zip(self._all_waited(), self._waited, strict=True))
        return max(wall - lost, wall / MOST)
