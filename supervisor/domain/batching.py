"""How many jobs are claimed at a time, and which and how many of them run together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
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
    """The places of the jobs that run next, at most `most`.

    The first one always runs, so that no key has to wait for the others to be used up. The others follow in order
    while the sum of their costs is within the budget, and none is left out for one behind it with the same key.
    """
    first = candidates[0]
    chosen, cost = [0], first.cost
    most = min(most, first.most)
    if first.key is None:
        return chosen
    for place in range(1, len(candidates)):
        candidate = candidates[place]
        if candidate.key != first.key:
            continue
        if len(chosen) >= min(most, candidate.most) or cost + candidate.cost > budget:
            break
        chosen.append(place)
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


# How many jobs a batch has with `batch_size = "auto"`: decided from how long batches of different sizes took.
#
# Nothing is assumed about the handler, except that a larger batch does not take less time. Times of sizes that were not
# tried lie between those of their neighbours. Of the sizes within the latency target, the smallest is taken whose
# throughput is close to the best: larger ones would only make jobs wait.
#
# It begins with one job and doubles while that promises a gain. Now and then it tries a size nearby, to notice that the
# handler's times have changed. A size that ran out of memory is not tried again for a long time.

_KEPT = 64  # times of one size; the newest replace the oldest
_FEW = 3  # times of a size before a larger one may be tried
_RECENT = 8  # times of a size that are compared with the earlier ones
_DOUBT = 1.15  # by which factor few times may be wrong
_ENOUGH = 12  # times of a size before it is believed that larger ones gain nothing; twice as many near the target
_SIZES = 16  # about which times are kept
_GAIN = 1.04  # a throughput higher by less than this is not worth a larger batch
_PROBE_EVERY = 16  # batches
_CHOOSE_EVERY = 4  # batches, once the size is found
_CHANGED = 1.3  # the ratio of newer times to older ones of a size that noise does not explain
_STALE = 500  # batches after which times of a size that is not used are forgotten
_PATIENCE = 1000  # batches until a size that ran out of memory may be tried again; doubled each time
_LONGEST_PATIENCE = 64_000
_PLENTIFUL = 0.75  # of the size asked for: smaller batches say nothing about it
_NEAR = 0.8  # of the target: from there on its times decide
_WEIGHT = 0.1  # of the latest batch in the average time between two


class AutoBatchSize:
    """`size` is how many jobs the next batch should have, at most `most`. `target` is the seconds a batch may take."""

    def __init__(self, most: int, target: float) -> None:
        self._most = most
        self._target = target
        self._ceiling = most  # one less than what has run out of memory
        self._patience = _PATIENCE
        self._lift_at = 0  # batches; when the ceiling rises
        self._failed_in_row = 0
        self._times: dict[int, _Times] = {}
        self._between = 0.0  # seconds from the end of a batch to the start of the next
        self._batches = 0
        self._probe_at = _PROBE_EVERY
        self._probing = self._upwards = False
        self._best = 1
        self._found = False
        self.size = 1

    def observe(self, size: int, seconds: float, between: float | None = None) -> None:
        """A batch of this size has run. `between` is the time since the one before, None if the worker had no jobs."""
        if between is not None:
            self._between += _WEIGHT * (min(between, 4 * self._between or between) - self._between)
        if size < self.size * _PLENTIFUL:
            return
        self._batches += 1
        self._failed_in_row = 0
        times = self._times.setdefault(size, _Times())
        if times.add(seconds, self._batches):  # the handler or the machine has changed: what was known is no longer so
            self._times = {size: times}
            self._found = False
        self._forget()
        if self._ceiling < self._most and self._batches >= self._lift_at:
            self._lift()
        self.size = self._next(times)

    def out_of_memory(self, size: int) -> None:
        """A batch of this size has run out of memory."""
        # Once, a single large payload may be the cause. If it happens again at once, there is less memory than before.
        self._ceiling = max(1, min(self._ceiling, size // 2 if self._failed_in_row else size - 1))
        self._failed_in_row += 1
        self._lift_at = self._batches + self._patience
        self._patience = min(2 * self._patience, _LONGEST_PATIENCE)
        self._probing = self._found = False
        known = [n for n in self._times if n <= self._ceiling]
        self._best = min(self._best, self._ceiling) if known else max(1, self._ceiling // 2)
        self.size = self._best

    def _lift(self) -> None:
        self._ceiling = min(self._most, self._ceiling + max(1, self._ceiling // 4))
        self._lift_at = self._batches + self._patience
        self._found = False

    def _next(self, latest: _Times) -> int:
        if self._probing:
            self._probing = False
            return self._best
        if len(latest) < _FEW:
            return self.size
        if self._found and self._batches % _CHOOSE_EVERY:
            return self._best
        self._best = self._choose()
        other = self._larger() or self._doubtful()
        self._found = other is None
        if other is not None:
            return other
        if self._batches >= self._probe_at:
            return self._probe()
        return self._best

    def _choose(self) -> int:
        """The smallest size whose throughput is close to the best of those within the target."""
        rising = _rising(self._times)
        smallest = next(iter(rising))
        within = self._within(rising)
        if smallest <= self._ceiling and (rising[smallest] > self._target or not within):
            return max(1, smallest // 2)
        rates = {n: self._rate(n, seconds) for n, seconds in _filled_in(rising).items() if n in within}
        if not rates:
            return self._ceiling
        quickest = max(rates, key=lambda n: rates[n])
        return next(n for n, rate in rates.items() if rate * _price(quickest / n) >= rates[quickest])

    def _within(self, rising: Mapping[int, float]) -> set[int]:
        """The sizes that are expected to stay within the target."""
        near = max(rising.values()) > _NEAR * self._target
        expected = _smooth(self._times) if near else rising
        return {n for n, seconds in _filled_in(expected).items() if seconds <= self._target and n <= self._ceiling}

    def _rate(self, size: int, seconds: float) -> float:
        return size / max(seconds + self._between, 1e-9)

    def _larger(self) -> int | None:
        """A size that was not tried and promises a gain; the largest tried one, to know more about it; or None."""
        rising = _rising(self._times)
        top = max(self._within(rising) & rising.keys(), default=0)
        if not top or top >= self._ceiling or any(n > top for n in rising):
            return None  # what lies between two tried sizes is known well enough
        larger = min(2 * top, self._most) if self._ceiling == self._most else (top + self._ceiling + 1) // 2
        slope = _slope(rising, top)
        if slope is None:  # at worst each job takes as long as those so far
            slope = 0.0
            larger = min(larger, max(top + 1, int(self._target / max(rising[top], 1e-9) * top)))
        elif slope > 0.0:
            larger = min(larger, top + int((self._target - rising[top]) / slope))
        if larger <= top:
            return None
        expected = self._rate(larger, rising[top] + slope * (larger - top))
        if expected > _GAIN * self._rate(self._best, _filled_in(rising)[self._best]):
            return larger
        return None if len(self._times[top]) >= _ENOUGH else top

    def _doubtful(self) -> int | None:
        """A size that would be the better one if its few times are a little wrong."""
        rising = _rising(self._times)
        rate = self._rate(self._best, _filled_in(rising).get(self._best, 0.0))
        for size, seconds in rising.items():
            close = seconds <= _DOUBT * self._target and size <= self._ceiling
            enough = 2 * _ENOUGH if seconds > _NEAR * self._target else _ENOUGH
            if size != self._best and close and len(self._times[size]) < enough:
                needed = rate / _price(self._best / size) if size < self._best else rate
                if self._rate(size, seconds) * _DOUBT >= needed:
                    return size
        return None

    def _probe(self) -> int:
        """A size near the best one, for a single batch."""
        self._probe_at = self._batches + _PROBE_EVERY
        self._probing = True
        self._upwards = not self._upwards
        times = self._times.get(self._best)
        if self._upwards and self._best < self._ceiling and times is not None:
            room = self._target / max(times.typical, 1e-9)
            part = 0.4 if room >= 1.4 else 0.1  # close to the target, a little above it at most
            if room >= 0.9:
                return min(self._ceiling, self._best + max(1, int(self._best * part)))
        return max(1, self._best * 7 // 10)

    def _forget(self) -> None:
        for size in [n for n, times in self._times.items() if times.latest < self._batches - _STALE]:
            del self._times[size]
        if len(self._times) > _SIZES:
            del self._times[min(self._times, key=lambda n: self._times[n].latest)]


class _Times:
    """How long the latest batches of one size took."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_KEPT)
        self.typical = 0.0
        self.latest = 0  # when it was used last

    def __len__(self) -> int:
        return len(self._seconds)

    def add(self, seconds: float, now: int) -> bool:
        """Whether the times have changed more than by noise; then only the newest are kept."""
        self._seconds.append(seconds)
        self.latest = now
        changed = False
        if len(self._seconds) >= 2 * _RECENT:
            newest = list(self._seconds)[-_RECENT:]
            if _differ(newest, _middle(list(self._seconds)[:-_RECENT])):
                changed = True
                self._seconds = deque(newest, maxlen=_KEPT)
        self.typical = _middle(self._seconds)
        return changed


def _price(factor: float) -> float:
    """By which factor the throughput must be higher to make a batch larger by `factor`, in which jobs wait longer."""
    return 1.0 + min(0.08, 0.02 + 0.03 * log2(factor))


def _differ(newest: Sequence[float], before: float) -> bool:
    """Whether they are so much slower or quicker that noise does not explain it: nearly all of them, since a few
    batches during which the machine did something else would look like a change.
    """
    ratio, ordered = _middle(newest) / max(before, 1e-9), sorted(newest)
    return (ratio >= _CHANGED and ordered[1] >= before) or (ratio <= 1 / _CHANGED and ordered[-2] <= before)


def _middle(values: Sequence[float] | deque[float]) -> float:
    """The mean without the quarter of the smallest and of the largest: close to a mean in ordinary noise, and one
    batch during which the machine did something else does not count.
    """
    ordered = sorted(values)
    outer = (len(ordered) + 1) // 4
    inner = ordered[outer : len(ordered) - outer]
    return sum(inner) / len(inner)


def _rising(times: Mapping[int, _Times], seconds: Mapping[int, float] | None = None) -> dict[int, float]:
    """The typical seconds of each size, or these, in order, so that no larger batch takes less time: where noise says
    so, the weighted mean of both (pool adjacent violators).
    """
    pools: list[tuple[float, int, list[int]]] = []  # seconds, how many times, sizes
    for size in sorted(times):
        pool = (times[size].typical if seconds is None else seconds[size], len(times[size]), [size])
        while pools and pools[-1][0] >= pool[0]:
            before, count, sizes = pools.pop()
            together = count + pool[1]
            pool = ((before * count + pool[0] * pool[1]) / together, together, sizes + pool[2])
        pools.append(pool)
    return {size: typical for typical, _, sizes in pools for size in sizes}


def _smooth(times: Mapping[int, _Times]) -> dict[int, float]:
    """The same from a line through the times of each size and of those between half and double of it: where a call
    alone takes most of the target, a little noise in the times of one size would stand for many jobs.
    """
    return _rising(times, {size: _on_line(times, size) for size in times})


def _on_line(times: Mapping[int, _Times], size: int) -> float:
    near = [
        (n, one.typical, len(one) * (1.0 - abs(log2(n / size)))) for n, one in times.items() if size < 2 * n < 4 * size
    ]
    weight = sum(w for _, _, w in near)
    middle = sum(n * w for n, _, w in near) / weight
    seconds = sum(t * w for _, t, w in near) / weight
    spread = sum((n - middle) ** 2 * w for n, _, w in near)
    slope = sum((n - middle) * (t - seconds) * w for n, t, w in near) / spread if spread else 0.0
    return seconds + max(0.0, slope) * (size - middle)


def _filled_in(rising: Mapping[int, float]) -> dict[int, float]:
    """The same with the sizes in between, for large ones in steps of about a sixteenth."""
    found: dict[int, float] = {}
    for (low, seconds), (high, more) in pairwise(rising.items()):
        step = max(1, 1 << (low.bit_length() - 5)) if low >= 16 else 1
        for size in range(low, high, step):
            found[size] = seconds + (more - seconds) * (size - low) / (high - low)
    last = max(rising)
    found[last] = rising[last]
    return found


def _slope(rising: Mapping[int, float], size: int) -> float | None:
    """Seconds for each further job above `size`, judged by a size that is clearly smaller; None if there is none."""
    below = [n for n in rising if n <= size * 3 // 4]
    if not below:
        return None
    return (rising[size] - rising[below[-1]]) / (size - below[-1])
