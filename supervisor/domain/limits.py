"""The limits of a type: how many of its jobs run at once, how often one starts, and in which order."""

from __future__ import annotations

import math
from contextlib import suppress
from itertools import chain
from typing import Literal, NamedTuple

from supervisor.domain.text import is_number, seconds

NEVER = 1e9
"""Seconds: nobody waits for so long that it would count as much as a step of priority."""

Conflict = Literal["wait", "skip", "cancel_running"]
MOST_STARTS = 100_000
"""In a second, and in the period of a rate."""
_SPARE = 0.015  # seconds of each period in which nothing starts: see `interval_of`


class Limits(NamedTuple):
    """A row of job_limits. Times are seconds; None: no limit.

    `per_key` and what begins with `key_` are for each concurrency_key. An `interval` is that between two starts, of
    which `burst` may be saved up. Jobs take turns by their fair_key if `fair`. `age_boost` is the waiting that counts
    as much as a step of priority. After `max_failures` in a row, no job starts for `breaker_pause`, and then one at a
    time until one succeeds.
    """

    max_running: int | None = None
    per_key: int | None = None
    on_conflict: Conflict = "wait"
    interval: float | None = None
    burst: int = 1
    key_interval: float | None = None
    key_burst: int = 1
    fair: bool = False
    age_boost: float = NEVER
    max_failures: int | None = None
    breaker_pause: float = 60.0

    @property
    def needs_room(self) -> bool:
        """Whether its order counts only if no more are admitted than can run soon."""
        return self.max_running is None and (self.fair or self.age_boost < NEVER)


def interval_of(rate: str) -> float:
    """Seconds between two starts, for a rate such as `50/s`, `100/m` or `1/5s`.

    A little more than the period divided by the starts: a start may come up to 12 ms late without moving those after it
    (see gates.sql), and its run 3 ms later, and still no period has one too many. Raises ValueError for anything else.
    """
    count, _, period = rate.replace(" ", "").partition("/")
    try:
        length = seconds(period if period[:1].isdigit() else f"1{period}") if period else 0.0
    except ValueError:  # what it says is about the period, with a 1 that nobody wrote
        length = 0.0
    if not is_number(count) or int(count[:9]) < 1 or not 0.001 <= length <= 31 * 86_400.0:
        raise ValueError(f"{rate!r} is not a rate; write it like 50/s, 100/m or 1/5s")
    if len(count) > 9 or int(count) > MOST_STARTS * min(length, 1.0):
        raise ValueError(f"{rate!r} is too high; at most {MOST_STARTS:,} starts a second, and a period, are possible")
    return (length + _SPARE) / int(count)


def rate_of(interval: float) -> str:
    """The rate that has this interval, written shortly; a close one if that needs a count above 1,000."""
    interval = max(interval, 1 / MOST_STARTS)  # other programs may write into the table
    units = [(round((seconds(f"1{unit}") + _SPARE) / interval), unit) for unit in ("s", "m", "h", "d")]
    others = (
        (number, f"{round(number * interval - _SPARE, digits):.10g}s") for digits in (1, 3) for number in range(1, 1000)
    )
    for count, period in chain(units, others):
        with suppress(ValueError):
            if math.isclose(interval_of(f"{count}/{period}"), interval, rel_tol=1e-12):
                return f"{count}/{period}"
    close = (f"{count}/{unit}" for count, unit in reversed(units) if count <= MOST_STARTS)
    return next(close, f"{MOST_STARTS}/s")
