"""What ran in the last hour, also in the current minute, which the history does not have yet: of supervisors here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from supervisor.domain.history import HOUR, Minute, minute_of, recorded
from supervisor.maintenance.history import decoded_sums, sums_of
from supervisor.store.base import Operations, SupervisorRecord
from supervisor.system.scoreboard import counters_of


def minutes(operations: Operations, here: Iterable[SupervisorRecord], now: float) -> list[Minute]:
    """`here` are the living supervisors whose counters can be read. `now` is Unix seconds.

    A minute that is recorded between the looks is missing once; it is never counted twice.
    """
    counted = [(record.id, sums_of(counters_of(Path(record.scoreboard)))) for record in here]
    found = operations.history.minutes(now - HOUR, now)
    for supervisor, sums in counted:
        if sums:
            found += recorded(minute_of(now), sums, decoded_sums(operations.history.counted(supervisor)), ())
    return found
