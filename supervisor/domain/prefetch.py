"""How many jobs a worker claims at a time."""

from __future__ import annotations

TARGET = 0.020  # seconds of work to claim at once: what another worker may have to wait for
MOST = 256
_WEIGHT = 0.3  # of the latest batch in the running average


class Pace:
    """`prefetch = "auto"`: as many jobs as take about 20 ms, one for anything slower, at most 256.

    With a `fixed` number it is always that.
    """

    def __init__(self, fixed: int | None = None) -> None:
        self._fixed = fixed
        self._mean: float | None = None

    @property
    def want(self) -> int:
        if self._fixed is not None:
            return self._fixed
        if self._mean is None:
            return 1  # nothing is known yet: the first job may take minutes
        return max(1, min(MOST, int(TARGET / max(self._mean, 1e-9))))

    def observe(self, jobs: int, seconds: float) -> None:
        """`jobs` were run in `seconds`. Slow ones count at once, quick ones only gradually."""
        if jobs < 1:
            return
        mean = seconds / jobs
        if self._mean is None or mean > self._mean * 4:
            self._mean = mean
        else:
            self._mean += _WEIGHT * (mean - self._mean)
