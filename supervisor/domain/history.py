"""The last hour in minutes: what the maintainer keeps for charts, so that no scraper is needed."""

from __future__ import annotations

from dataclasses import dataclass

MINUTE = 60.0  # seconds
KEPT = 3600.0  # seconds of history


@dataclass(frozen=True, slots=True)
class Minute:
    """One type in one minute. `at` is the Unix time at which the minute began.

    Counts are of the minute: runs that ended `done`, and attempts that `failed`, crashes and time limits
    included. `waiting` (due) and `running` are as they stood at its end. `run_seconds` and `wait_seconds` are
    sums over the runs of our workers, to be divided by `done + failed`.
    """

    at: float
    type: str
    done: int = 0
    failed: int = 0
    waiting: int = 0
    running: int = 0
    run_seconds: float = 0.0
    wait_seconds: float = 0.0
