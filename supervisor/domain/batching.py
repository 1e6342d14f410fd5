"""How many jobs are claimed at a time, and which and how many of them run together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Mapping, Sequence
from json import dumps
from statistics import median
from typing import Any, NamedTuple

PREFETCH_TARGET = 0.020  # seconds of work to claim at once: what another worker may have to wait for
MOST_PREFETCHED = 256
_LATEST = 0.3  # of the latest batch in the running average


class Prefetch:
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
        return max(1, min(MOST_PREFETCHED, int(PREFETCH_TARGET / max(self._mean, 1e-9))))

    def observe(self, jobs: int, seconds: float) -> None:
        """`jobs` were run in `seconds`. Slow ones count at once, quick ones only gradually."""
        if jobs < 1:
            return
        mean = seconds / jobs
        if self._mean is None or mean > self._mean * 4:
            self._mean = mean
        else:
            self._mean += _LATEST * (mean - self._mean)


class Candidate(NamedTuple):
    """A job as far as batches are concerned. Those with different keys do not run together; one whose key is None
    runs alone. `most` is the largest batch that it may be in.
    """

    key: str | None
    cost: float
    most: int


def together(candidates: Sequence[Candidate], most: int, budget: float) -> list[int]:
    """The indices of the jobs that run next, at most `most`.

    The first one always runs, so that no key has to wait for the others to be used up. The others follow in order
    while the sum of their costs is within the budget, and none is left out for one behind it with the same key.
    """
    first = candidates[0]
    chosen, cost = [0], first.cost
    most = min(most, first.most)
    if first.key is None:
        return chosen
    for index in range(1, len(candidates)):
        candidate = candidates[index]
        if candidate.key != first.key:
            continue
        if len(chosen) >= min(most, candidate.most) or cost + candidate.cost > budget:
            break
        chosen.append(index)
        cost += candidate.cost
        most = min(most, candidate.most)
    return chosen


def at_path(payload: Any, path: str) -> Any:
    """What a payload has at "model" or "options.model"; None if it lacks that."""
    for part in path.split("."):
        if not isinstance(payload, Mapping):
            return None
        payload = payload.get(part)
    return payload


def as_key(value: Any) -> str:
    """A text that is the same for equal values. Raises TypeError or ValueError for what JSON cannot represent."""
    return value if type(value) is str else "\0" + dumps(value, sort_keys=True)


def as_cost(value: Any) -> float:
    """Raises ValueError for what is not a number of at least 0."""
    if type(value) is int or type(value) is float:  # a bool is not a cost
        cost = float(value)
        if cost >= 0.0 and not math.isinf(cost):
            return cost
    raise ValueError(f"a cost must be a number of at least 0, not {str(value)[:60]!r}")


_KEPT = 15  # times of one size; the newest replace the oldest
_FEW = 4  # times of a size before another one is tried
_STALE = 400  # batches after which the times of all other sizes are forgotten
_PROBE_EVERY = 12  # batches
_GAIN = 1.04  # a throughput higher by less than this is not worth a larger size
_TOLERANCE = 1.03  # of the target: measured times are never exact
_PATIENCE = 1000  # batches until a size that ran out of memory may be tried again; doubled each time
_PLENTIFUL = 0.75  # of the size asked for: smaller batches say nothing about it
_WEIGHT = 0.1  # of the latest batch in the average time between two


class AutoBatchSize:
    """`batch_size = "auto"`: how many jobs a batch has, decided from how long batches of different sizes took.

    `size` is how many the next batch should have, at most `most`. `target` is the seconds that a batch may typically
    take. Of the sizes within it, the smallest is taken whose throughput is close to the best: in a larger batch jobs
    would only wait longer.

    It climbs a ladder of sizes, each about a quarter larger, while that brings a gain. Now and then one batch has the
    size of a neighbour, to notice that the handler's times have changed. A size that ran out of memory is not tried
    again for a long time, and if it happens again at once, the size is halved.
    """

    def __init__(self, most: int, target: float) -> None:
        self._ladder = sorted(
            {size * 2**power // 4 for power in range(9) for size in (4, 5, 6, 7)} & set(range(most)) | {most}
        )
        self._target = target * _TOLERANCE
        self._times: dict[int, deque[float]] = {}  # seconds, by rung
        self._between = 0.0  # seconds from the end of a batch to the start of the next
        self._batches = self._failures = 0
        self._top, self._rise_at, self._patience = len(self._ladder) - 1, 0, _PATIENCE
        self._rung = 0

    @property
    def size(self) -> int:
        return self._ladder[self._rung]

    def observe(self, size: int, seconds: float, between: float | None = None) -> None:
        """A batch of this size has run. `between` is the time since the one before, None if the worker had no jobs.

        From three quarters of the size that was asked for, it counts as one of that size; a smaller one says nothing.
        """
        if between is not None:
            self._between += _WEIGHT * (min(between, 4 * self._between or between) - self._between)
        if size < self.size * _PLENTIFUL:
            return
        self._batches += 1
        self._failures = 0
        if self._top < len(self._ladder) - 1 and self._batches >= self._rise_at:
            self._top, self._rise_at = self._top + 1, self._batches + self._patience
        if self._batches % _STALE == 0:
            self._times = {rung: times for rung, times in self._times.items() if rung == self._rung}
        self._times.setdefault(self._rung, deque(maxlen=_KEPT)).append(seconds)
        self._rung = self._next()

    def out_of_memory(self, size: int) -> None:
        """A batch of this size has run out of memory. It may have been smaller than what was asked for."""
        self._failures += 1
        rung = min(self._rung, bisect_right(self._ladder, size) - 1)
        self._top = max(0, bisect_right(self._ladder, size // 2) - 1 if self._failures > 1 else rung - 1)
        self._times = {rung: times for rung, times in self._times.items() if rung <= self._top}
        self._rung = self._top
        self._rise_at = self._batches + self._patience
        self._patience *= 2

    def _next(self) -> int:
        if len(self._times[self._rung]) < _FEW:
            return self._rung
        typical = {rung: median(times) for rung, times in self._times.items()}
        rates = {
            rung: self._ladder[rung] / max(seconds + self._between, 1e-9)
            for rung, seconds in sorted(typical.items())
            if seconds <= self._target and rung <= self._top
        }
        if not rates:
            return max(0, min(typical) - 1)
        best = next(rung for rung, rate in rates.items() if rate * _GAIN >= max(rates.values()))
        if best + 1 not in typical and best + 1 <= self._top:
            return best + 1
        if self._batches % _PROBE_EVERY:
            return best
        upwards = self._batches // _PROBE_EVERY % 2 and best + 1 in rates
        return best + 1 if upwards else max(0, best - 1)
