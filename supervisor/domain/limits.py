"""The limits of a type: how many of its jobs run at once, how often one starts, and in which order."""

from __future__ import annotations

from typing import Literal, NamedTuple

from supervisor.domain.text import seconds

NEVER = 1e9
"""Seconds: nobody waits for so long that it would count as much as a step of priority."""

Conflict = Literal["wait", "skip", "cancel_running"]
_TOLERANCE = 0.005  # seconds by which a start may be late without the next one being later, too: see `interval_of`


class Limits(NamedTuple):
    """A row of job_limits. Times are seconds; None means that there is no such limit.

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

    A little more than the period divided by the starts: a start may come up to 5 ms late without moving those after it,
    and still no period has one too many. Raises ValueError for anything else.
    """
    count, _, period = rate.replace(" ", "").partition("/")
    length = seconds(period if period[:1].isdigit() else f"1{period}") if period else 0.0
    if not count.isdecimal() or not 1 <= int(count) <= 100_000 or not 0.001 <= length <= 31 * 86_400.0:
        raise ValueError(f"{rate!r} is not a rate; write it like 50/s, 100/m or 1/5s")
    return (length + _TOLERANCE) / int(count)
