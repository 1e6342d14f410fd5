"""How many jobs are claimed at a time, and which and how many of them run together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from json import dumps
from math import log2
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


_KEPT = 64  # times of one size; the newest replace the oldest
_SIZES = 16  # about which times are kept
_STALE = 500  # batches after which times of a size that is not used are forgotten
_FEW = 3  # times of a size before another one is tried
_ENOUGH = 12  # times of a size that are believed; fewer of them may be wrong by a factor:
_DOUBT = 1.15
_GAIN = 1.04  # a throughput higher by less than this is not worth trying another size
_TOLERANCE = 1.03  # of the target: measured times are never exact
_CHANGED = 1.3  # the ratio of a time to the usual one that noise does not explain if it is so several times in a row:
_IN_A_ROW = 5
_PROBE_EVERY = 16  # batches
_PATIENCE = 1000  # batches until a size that ran out of memory may be tried again; doubled each time
_LONGEST_PATIENCE = 64_000
_PLENTIFUL = 0.75  # of the size asked for: smaller batches say nothing about it
_WEIGHT = 0.1  # of the latest batch in the average time between two


class AutoBatchSize:
    """`batch_size = "auto"`: how many jobs a batch has, decided from how long batches of different sizes took.

    `size` is how many the next batch should have, at most `most`. `target` is the seconds that a batch may typically
    take. Of the sizes within it, the smallest is taken whose throughput is close to the best: in a larger batch jobs
    would only wait longer.

    It begins with one job and doubles while that promises a gain. A size of which little is known is used as long as
    it might be the better one. Now and then one batch has a size nearby, to notice that the handler's times have
    changed. A size that ran out of memory is not tried again for a long time.
    """

    def __init__(self, most: int, target: float) -> None:
        self._target = target * _TOLERANCE
        self._ceiling = _Ceiling(most)
        self._times: dict[int, _Times] = {}  # by size, ascending
        self._between = 0.0  # seconds from the end of a batch to the start of the next
        self._batches = 0
        self._probes = 0
        self._probing = False
        self._best = self.size = 1

    def observe(self, size: int, seconds: float, between: float | None = None) -> None:
        """A batch of this size has run. `between` is the time since the one before, None if the worker had no jobs."""
        if between is not None:
            self._between += _WEIGHT * (min(between, 4 * self._between or between) - self._between)
        if size < self.size * _PLENTIFUL:
            return
        self._batches += 1
        self._ceiling.has_run(self._batches)
        times = self._times.setdefault(size, _Times())
        if times.add(seconds, self._batches):
            self._times = {size: times}
        self._forget()
        if self._probing or len(times.seconds) >= _FEW or self.size > self._ceiling.size:
            self.size = self._next()

    def out_of_memory(self, size: int) -> None:
        """A batch of this size has run out of memory."""
        self._ceiling.has_failed(size, self._batches)
        most = self._ceiling.size
        self._times = {n: times for n, times in self._times.items() if n <= most}
        self._best = self.size = min(self._best, most) if self._times else max(1, most // 2)

    def _forget(self) -> None:
        latest = sorted(self._times, key=lambda n: -self._times[n].latest)[:_SIZES]
        self._times = {n: self._times[n] for n in sorted(latest) if self._times[n].latest > self._batches - _STALE}

    def _next(self) -> int:
        known = {n: times.typical for n, times in self._times.items()}
        doubtful = {n for n, times in self._times.items() if len(times.seconds) < _ENOUGH}
        self._best = best = self._best_of(known)
        hoped = self._best_of({n: seconds / _DOUBT if n in doubtful else seconds for n, seconds in known.items()})
        self._probing = False
        if hoped != best and hoped in doubtful:
            return hoped
        other = self._untried(known)
        if other is not None or self._batches % _PROBE_EVERY or best not in known:
            return other or best
        self._probing = True
        self._probes += 1
        larger = min(self._ceiling.size, best + max(1, best // 4))
        if self._probes % 2 and known[best] * larger <= self._target * best:  # a little above it at most
            return larger
        return max(1, best * 7 // 10)

    def _best_of(self, times: Mapping[int, float]) -> int:
        """The smallest size whose throughput is close to the best of those within the target."""
        rates = {n: self._rate(n, seconds) for n, seconds in times.items() if self._is_within(n, seconds)}
        if not rates:
            return max(1, min(self._ceiling.size, min(times) // 2))
        quickest = max(rates, key=lambda n: rates[n])
        return next(n for n, rate in rates.items() if rate * _price(quickest / n) >= rates[quickest])

    def _untried(self, times: Mapping[int, float]) -> int | None:
        """A size above the largest one within the target that promises a gain; None if none does."""
        top = max((n for n, seconds in times.items() if self._is_within(n, seconds)), default=None)
        if top is None:
            return None
        above = min((n for n in times if n > top), default=None)
        below = max((n for n in times if n <= top * 3 // 4), default=None)
        larger = self._ceiling.next_above(top)
        slope = 0.0  # seconds for each further job
        if above is not None:
            slope, larger = (times[above] - times[top]) / (above - top), above - 1
        elif below is not None:
            slope = max(0.0, (times[top] - times[below]) / (top - below))
        else:  # at worst each job takes as long as those so far
            larger = min(larger, max(top + 1, int(self._target / max(times[top], 1e-9) * top)))
        if slope > 0.0:
            larger = min(larger, top + int((self._target - times[top]) / slope))
        if larger - top < max(1, top // 16):
            return None
        expected = self._rate(larger, times[top] + slope * (larger - top))
        return larger if expected > _GAIN * self._rate(self._best, times[self._best]) else None

    def _is_within(self, size: int, seconds: float) -> bool:
        return seconds <= self._target and size <= self._ceiling.size

    def _rate(self, size: int, seconds: float) -> float:
        return size / max(seconds + self._between, 1e-9)


class _Ceiling:
    """The largest size for which there is memory, as far as that is known. `most` is the largest of all."""

    def __init__(self, most: int) -> None:
        self.size = most
        self._most = most
        self._patience = _PATIENCE
        self._rise_at = 0  # batches
        self._failures = 0  # in a row

    def has_run(self, batches: int) -> None:
        """A batch has not run out of memory. `batches` is how many have run so far."""
        self._failures = 0
        if self.size < self._most and batches >= self._rise_at:
            self.size = min(self._most, self.size + max(1, self.size // 4))
            self._rise_at = batches + self._patience

    def has_failed(self, size: int, batches: int) -> None:
        """One has. A single large payload may be the cause; if it happens again at once, there is less memory now."""
        self.size = max(1, min(self.size, size // 2 if self._failures else size - 1))
        self._failures += 1
        self._rise_at = batches + self._patience
        self._patience = min(2 * self._patience, _LONGEST_PATIENCE)

    def next_above(self, size: int) -> int:
        """The next size to try: twice as large, or halfway to the ceiling if there is one."""
        return min(2 * size, self._most) if self.size == self._most else (size + self.size + 1) // 2


class _Times:
    """How long the latest batches of one size took."""

    def __init__(self) -> None:
        self.seconds: deque[float] = deque(maxlen=_KEPT)
        self.typical = 0.0
        self.latest = 0  # when it was used last
        self._unusual = 0  # how many of the newest times in a row: slower ones if above 0, quicker ones if below

    def add(self, seconds: float, now: int) -> bool:
        """Whether the handler or the machine has changed. Then only the newest times are kept."""
        slower, quicker = seconds > self.typical * _CHANGED, seconds * _CHANGED < self.typical
        self._unusual = max(self._unusual, 0) + 1 if slower else min(self._unusual, 0) - 1 if quicker else 0
        self.seconds.append(seconds)
        self.latest = now
        changed = abs(self._unusual) >= _IN_A_ROW < len(self.seconds)
        if changed:
            self.seconds = deque(list(self.seconds)[-_IN_A_ROW:], maxlen=_KEPT)
            self._unusual = 0
        self.typical = _median(self.seconds)
        return changed


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return (ordered[half] + ordered[~half]) / 2


def _price(factor: float) -> float:
    """By which factor the throughput must be higher to make a batch larger by `factor`, in which jobs wait longer."""
    return 1.0 + min(0.08, 0.02 + 0.03 * log2(factor))
